class Part:
    pass
