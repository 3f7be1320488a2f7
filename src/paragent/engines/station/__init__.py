"""The far side of cluster engines: a station holds one supervised worker on some node and answers to the driver."""
