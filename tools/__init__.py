"""Programs that write documents, tables and the CRD from the code. Not shipped; `make crds` runs them all."""
