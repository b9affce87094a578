"""Weight updates: both transports, checks, errors.

Trainer ranks send the policy, an adapter or all weights, to the workers of rollout engines. A worker serves the new
version, and the server publishes it, only after everything that was sent has arrived and passed the checks.

    colocated replica: a sender and a receiver per accelerator, over shared memory or device IPC (`ipc`)

    rank of the trainer (`training_worker.server_adapter`)      worker of the engine (`engine_worker.worker_extension`)
        collective_rpc update_weights_from_ipc  ->  server  ->  connects
        buffer {segment or device handle}                   ->  opens it, drops the previous one
                                                            <-  reply {} | {failed}
        bucket {entries, last}                              ->  copies an adapter, or writes full weights
                                                            <-  reply {} | {failed}
        abort {reason}                                      ->  raises PeerFailed
                                                    server  <-  tensors, buckets, bytes, bound
        checks every worker's answer, then: server, clear the cache, serve this version

    standalone replicas: rank 0 sends to all at once, over TCP from CPU memory (`tcp_sender`, docs/guides/pools.md)

    rank 0 (`engine_workers`), listens for one update           worker of a replica (`training_worker.replica_worker`)
                                                            <-  connects
        challenge {nonce}                                   ->
                                                            <-  proof {receiver, nonce, proof}
        welcome {proof}                                     ->  the trainer has the token too
        header {version, peft_config}                       ->
        bucket {entries, last}, its bytes                   ->  checks the digests; passes the tensors on by `ipc`
        wait, between messages that are late                ->  so that one receiver's delay is not another's deadline
        abort {reason}                                      ->  raises PeerFailed
                                                            <-  reply {} | {failed}, once the engine has confirmed all

Each wait has a deadline at both ends, and each end reports its failure to the other. The last bucket lists the names of
all tensors, and a digest covers the bytes of each. `buckets` packs tensors, `buffers` shares memory between processes,
`messages` encodes and decodes, `handshake` proves that both ends have the Ray cluster's token, `checks` and
`full_weights` refuse what does not fit the engine's model, and `errors` crosses processes as text.
"""
