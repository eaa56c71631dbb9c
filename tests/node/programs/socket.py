MINE = "this socket"
