MINE = "this queue"
