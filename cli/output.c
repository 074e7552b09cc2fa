/* SPDX-License-Identifier: PostgreSQL */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

/** A buffer that one large message has grown beyond this is given back. */
#define OUTPUT_KEEP ((size_t)1 << 20)

int output_init(struct output *ret, int fd)
{
    int flags = fcntl(fd, F_GETFL);
    struct stat st;

    if (flags < 0 || fstat(fd, &st) < 0)
        return -errno;
    if ((flags & O_ACCMODE) == O_RDONLY) /* as fd_open_standard() leaves a closed one */
        return -EBADF;
    *ret = (struct output){
        .fd = fd,
        .is_file = S_ISREG(st.st_mode),
        .waits = !S_ISREG(st.st_mode) && !(S_ISCHR(st.st_mode) && !isatty(fd)),
    };
    return 0;
}

void output_deinit(struct output *o)
{
    buf_deinit(&o->buf);
}

/** 0: a write of up to PIPE_BUF bytes will not wait. 1: stop. */
static int wait_writable(struct output *o, int stop_fd, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = o->fd, .events = POLLOUT},
                                {.fd = stop_fd, .events = POLLIN}};
        int n = poll(fds, 2, clock_ms_until(deadline_ns));

        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0 && fds[0].revents)
            return 0;
        if (n > 0 || (n == 0 && clock_ms_until(deadline_ns) == 0))
            return 1;
    }
}

int output_flush(struct output *o, int stop_fd, uint64_t deadline_ns)
{
    if (o->buf.failed)
        return -ENOMEM;
    while (o->written < o->buf.size) {
        size_t size = o->buf.size - o->written;

        if (o->waits) {
            int rc = wait_writable(o, stop_fd, deadline_ns);

            if (rc != 0)
                return rc;
            size = MIN(size, (size_t)PIPE_BUF);
        }
        ssize_t n = write(o->fd, o->buf.data + o->written, size);
        if (n >= 0)
            o->written += (size_t)n;
        else if (errno != EINTR && errno != EAGAIN)
            return -errno;
    }
    if (o->buf.cap > OUTPUT_KEEP)
        buf_deinit(&o->buf);
    buf_clear(&o->buf);
    o->written = 0;
    return 0;
}
