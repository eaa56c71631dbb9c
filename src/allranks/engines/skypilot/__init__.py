"""SkyPilot through its own command: it finds machines, allranks' `join` runs on them."""
