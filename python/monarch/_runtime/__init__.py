"""The runtime of this process: started at first use, ended at exit; who runs in it, and what it handles."""
