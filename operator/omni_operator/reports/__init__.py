"""Progress reports of trainers over HTTP: authorized by token, limited by rate, relayed to the leader."""
