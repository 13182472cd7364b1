"""The whole way of ``fuseq deploy``, in stages whose results are kept by content hash."""
