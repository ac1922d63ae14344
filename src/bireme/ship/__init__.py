"""Files that travel with a job: the tree of ``--ship`` to the nodes, the files of ``--fetch`` from them."""
