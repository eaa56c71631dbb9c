print("dos")
raise ValueError(
    "lines"
)
