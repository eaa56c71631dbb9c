print("caf\u00e9", "é", ascii("é"))
raise ValueError("é")
