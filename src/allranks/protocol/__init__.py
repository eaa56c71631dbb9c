"""What both ends of a channel agree on: records, frames, messages, the handshake.

Layout: `jsontext.py` reads JSON with bounds, `codec.py` turns records into JSON and back. Everything here
is pure, needs the standard library alone and runs under Python 3.8, because a node imports it before anything else.
"""
