/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_WAIT_UNTIL_H
#define WALBUS_TESTS_UNIT_WAIT_UNTIL_H

#include <unistd.h>

#include <uv.h>

#include "base/clock.h"
#include "unit.h"

/** Runs the test's `loop` until the condition holds, 20 s at most. */
#define wait_until(condition)                                                                 \
    do {                                                                                      \
        uint64_t deadline_ = clock_monotonic_ns() + UINT64_C(20000000000);                    \
        while (!(condition)) {                                                                \
            ck_assert_msg(clock_monotonic_ns() < deadline_, "not in time: %s", #condition);   \
            (void)uv_run(&loop, UV_RUN_NOWAIT);                                               \
            (void)usleep(200);                                                                \
        }                                                                                     \
    } while (0)

#endif
