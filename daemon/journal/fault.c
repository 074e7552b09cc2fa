/* SPDX-License-Identifier: PostgreSQL */
#include "journal/fault.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/macros.h"

/* A process has one environment, and faults are asked for anywhere: the one place with a state of its own. */
#define FAULTS_MAX 16u

struct fault {
    char point[32];
    unsigned long count, passed; /* count 0: each time */
    char action[8];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault faults[FAULTS_MAX];
static size_t n_faults;
static bool read_it;

/* As a result of fault_at, but for what it does itself. */
#define DIE  INT_MIN
#define WAIT 0

static const struct {
    const char *name;
    int result;
} actions[] = {
    {"kill", DIE}, {"ENOSPC", -ENOSPC}, {"EIO", -EIO}, {"short", FAULT_SHORT}, {"slow", WAIT}};

/* A test whose fault is written wrong must not pass. */
static void parse_one(const char *text, size_t size)
{
    struct fault *f = &faults[n_faults];
    char copy[80], end;

    if (size < sizeof copy && n_faults < FAULTS_MAX) {
        memcpy(copy, text, size);
        copy[size] = '\0';
        *f = (struct fault){0};
        if (sscanf(copy, "%31[a-z-]:%lu=%7[a-zA-Z]%c", f->point, &f->count, f->action, &end) == 3 ||
            (f->count = 0, sscanf(copy, "%31[a-z-]=%7[a-zA-Z]%c", f->point, f->action, &end) == 2))
            for (size_t i = 0; i < ARRAY_SIZE(actions); i++)
                if (strcmp(actions[i].name, f->action) == 0) {
                    n_faults++;
                    return;
                }
    }
    (void)fprintf(stderr, "WALBUS_FAULT: \"%.*s\" is no fault\n", (int)size, text);
    abort();
}

static void parse(void)
{
    const char *text = getenv("WALBUS_FAULT");

    read_it = true;
    n_faults = 0;
    while (text && *text) {
        size_t size = strcspn(text, ",");

        parse_one(text, size);
        text += size;
        text += *text == ',';
    }
}

int fault_at(const char *point)
{
    int result = 0;
    bool slow = false;

    (void)pthread_mutex_lock(&lock);
    if (!read_it)
        parse();
    for (size_t i = 0; i < n_faults; i++) {
        struct fault *f = &faults[i];

        if (strcmp(f->point, point) != 0 || (++f->passed != f->count && f->count))
            continue;
        for (size_t k = 0; k < ARRAY_SIZE(actions); k++)
            if (strcmp(actions[k].name, f->action) == 0)
                result = actions[k].result;
        if (result == DIE)
            (void)kill(getpid(), SIGKILL);
        slow |= result == WAIT;
    }
    (void)pthread_mutex_unlock(&lock);
    if (slow)
        (void)usleep(FAULT_SLOW_MS * 1000u);
    return result;
}

void fault_reset(void)
{
    (void)pthread_mutex_lock(&lock);
    read_it = false;
    (void)pthread_mutex_unlock(&lock);
}
