# -*- coding: latin-1 -*-
print(ascii("café"))
raise ValueError("café")
