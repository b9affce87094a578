"""Weights from the trainer to rollout replicas on other nodes, over TCP from CPU memory (docs/guides/pools.md).

trainer, rank 0 (`sender`)               worker of a replica (`receiver`), each on a separate connection
listens on one port for one update  <-   connects
challenge {nonce}                   ->
                                    <-   proof {receiver, nonce, proof}
welcome {proof}                     ->   the trainer has the token too
header {version, peft_config}       ->
bucket {entries, last}, its bytes   ->   checks shape, dtype and digest; passes the tensors on to its engine
wait, between messages that are late -> so that one receiver's delay is not the deadline of another
                                    <-   reply {failed}, once the engine has confirmed all tensors
"""
