# SPDX-License-Identifier: PostgreSQL
"""Random faults under load, and the proof that nothing was lost, doubled or put out of order (test_schedules.py).

    truth      what was published, and what of it is committed
    signed     what of it is signed, well and badly, where the router asks for signatures
    publisher  sessions that publish, and write rows of it in the same transactions
    recorder   a durable subscriber in a process of its own, which keeps what it got in a file and acknowledges behind it
    history    what stands in those files
    checker    compares the two; pure, and itself tested on forged histories (test_schedule_checker.py)
    schedule   which faults come when, drawn from a seed
    world      the servers, the router and the recorders of one schedule, and the faults themselves
"""
