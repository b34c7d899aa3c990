"""Every change of fairseq's behaviour at run time, each with its reason."""
