VALUE = "from the package"
