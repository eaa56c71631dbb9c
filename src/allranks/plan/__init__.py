"""RunSpec × Cluster × facts → for each node: argv, environment, ranks; address and interface choice.

Pure: no IO. The child's environment is returned here, never written into os.environ.
"""
