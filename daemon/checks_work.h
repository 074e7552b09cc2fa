/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CHECKS_WORK_H
#define WALBUS_DAEMON_CHECKS_WORK_H

/*
 * What checks.c has done on workers. A job's members are its worker's until it stands in the list of what is done;
 * from then on they are the loop's, which takes them from there when libuv tells it, or in checks_finish(). A job is
 * freed when libuv has let go of it.
 */

#include <pthread.h>

#include "check_item.h"
#include "checks.h"

/** Most batches whose messages go to quarantine with one sync. */
#define CHECK_RUN_MAX 64u

enum check_job_kind { CHECK_PART, CHECK_STORE };

struct check_job {
    uv_work_t work;
    struct checks *checks;
    enum check_job_kind kind;
    struct check_job *next; /* of what is done */
    int error;
    /* a part */
    struct check_item *item;
    size_t from, to;
    struct check_notes notes;
    uint64_t valid;
    /* storing */
    struct check_item *items[CHECK_RUN_MAX];
    size_t n;
    uint64_t system_identifier;
    uint32_t era;
    size_t stored; /* of them, the first ones, if there was no error */
};

/** On a worker. */
void check_part(struct check_job *job, check_verify verify);
void check_store(struct check_job *job, struct quarantine *quarantine);

#endif
