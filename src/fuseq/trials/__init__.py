"""Search: a plan improved by compiled trials, in parallel, cached, and resumable."""
