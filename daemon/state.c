/* SPDX-License-Identifier: PostgreSQL */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "settings/setting_place.h"

#define SYSTEM_FOLDER "/var/lib/walbus"

/* A variable that names a folder, NULL when there is none. */
static const char *folder_variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value == '/' ? value : NULL;
}

/* *ret_parents: what leads to it is made too. *ret_variable: that has named it, or NULL. */
static int state_place(const char *given, struct buf *out, bool *ret_parents, const char **ret_variable)
{
    const char *folder;

    *ret_parents = false;
    *ret_variable = NULL;
    if (given) {
        buf_append_str(out, given);
        return 0;
    }
    folder = folder_variable("STATE_DIRECTORY");
    if (folder) {
        *ret_variable = "STATE_DIRECTORY";
        buf_append(out, folder, strcspn(folder, ":")); /* systemd separates several by colons */
        return 0;
    }
    if (geteuid() == 0) {
        buf_append_str(out, SYSTEM_FOLDER);
        return 0;
    }
    *ret_parents = true;
    folder = folder_variable("XDG_STATE_HOME");
    if (folder) {
        *ret_variable = "XDG_STATE_HOME";
        buf_printf(out, "%s/walbus", folder);
        return 0;
    }
    folder = folder_variable("HOME");
    if (!folder)
        return -EINVAL;
    *ret_variable = "HOME";
    buf_printf(out, "%s/.local/state/walbus", folder);
    return 0;
}

static int make_folder(char *path, bool parents)
{
    struct stat st;

    for (char *slash = parents ? strchr(path + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int r = mkdir(path, 0700);
        *slash = '/';
        if (r < 0 && errno != EEXIST)
            return -errno;
    }
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    if (stat(path, &st) < 0)
        return -errno;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

/* Who holds it, as far as the file says; 0: it does not. */
static long holder_of(int fd)
{
    char text[32];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);

    if (n <= 0)
        return 0;
    text[n] = 0;
    return strtol(text, NULL, 10);
}

static int take_lock(const char *folder, int *ret, char why[STATE_WHY_SIZE])
{
    struct buf path = BUF_INIT;

    buf_printf(&path, "%s/lock", folder);
    int fd = open(buf_str(&path), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    buf_deinit(&path);
    if (fd < 0) {
        int error = errno;

        (void)snprintf(why, STATE_WHY_SIZE, "the state folder %.300s cannot be used: %s", folder, strerror(error));
        return -error;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int error = errno;
        long holder = holder_of(fd);

        if (error != EWOULDBLOCK)
            (void)snprintf(why, STATE_WHY_SIZE, "the state folder %.300s cannot be locked: %s", folder, strerror(error));
        else if (holder)
            (void)snprintf(why, STATE_WHY_SIZE, "another router uses the state folder %.300s: process %ld", folder, holder);
        else
            (void)snprintf(why, STATE_WHY_SIZE, "another router uses the state folder %.300s", folder);
        (void)fd_close(fd);
        return error == EWOULDBLOCK ? -EBUSY : -error;
    }
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    /* for people only: a full disk must not keep the router from its state */
    (void)!ftruncate(fd, 0);
    (void)!pwrite(fd, text, (size_t)n, 0);
    *ret = fd;
    return 0;
}

int state_open(struct state *s, const char *given, char why[STATE_WHY_SIZE])
{
    struct buf place = BUF_INIT;
    const char *variable;
    bool parents;

    if (given && *given != '/') { /* in a variable it counts for nothing */
        (void)snprintf(why, STATE_WHY_SIZE,
                       "the state folder %.300s has no absolute path: started from elsewhere the router would not find its journal",
                       given);
        return -EINVAL;
    }
    if (state_place(given, &place, &parents, &variable) < 0) {
        (void)snprintf(why, STATE_WHY_SIZE,
                       "no place for the state: none of STATE_DIRECTORY, XDG_STATE_HOME and HOME is set; give one with "
                       "--state-dir");
        return -EINVAL;
    }
    char *folder = place.failed ? NULL : strdup(buf_str(&place));
    buf_deinit(&place);
    if (!folder) {
        (void)snprintf(why, STATE_WHY_SIZE, "no memory");
        return -ENOMEM;
    }
    int r = make_folder(folder, parents);
    if (r < 0) {
        (void)snprintf(why, STATE_WHY_SIZE, "the state folder %.300s cannot be made: %s", folder, strerror(-r));
    } else {
        int lock = -1;
        r = take_lock(folder, &lock, why);
        if (r == 0) {
            *s = (struct state){.folder = folder, .lock = lock};
            return 0;
        }
    }
    free(folder);
    setting_place_blame_variable(variable, why);
    return r;
}

static const char *const parts[STATE_PARTS] = {"lock", "journal", "catalog"};

static int look_at(const struct state *s, const char *part, struct stat *st)
{
    struct buf path = BUF_INIT;

    buf_printf(&path, "%s/%s", s->folder, part);
    int r = path.failed ? -ENOMEM : stat(buf_str(&path), st) < 0 ? -errno : 0;
    buf_deinit(&path);
    return r;
}

void state_note(struct state *s)
{
    for (size_t i = 0; i < STATE_PARTS; i++) {
        struct stat st;

        if (look_at(s, parts[i], &st) < 0)
            continue;
        s->parts[i].device = st.st_dev;
        s->parts[i].file = st.st_ino;
    }
}

const char *state_missing(const struct state *s)
{
    for (size_t i = 0; i < STATE_PARTS; i++) {
        struct stat st;
        int r = look_at(s, parts[i], &st);

        if (s->parts[i].file &&
            (r == -ENOENT || r == -ENOTDIR ||
             (r == 0 && (st.st_dev != s->parts[i].device || st.st_ino != s->parts[i].file))))
            return parts[i];
    }
    return NULL;
}

void state_close(struct state *s)
{
    free(s->folder);
    s->folder = NULL;
    s->lock = fd_close(s->lock);
}
