/* SPDX-License-Identifier: PostgreSQL */
/*
 * The settings file. One that is accepted is written again from what was read, and then says the same; one that is not
 * has its fault named with a line that it has. The input is the file.
 */
#include "settings/settings_file.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "settings/settings_change.h"
#include "settings_text.h"

#define PATH_SIZE 32

/* A file that is nowhere; `path` opens it. */
static int file_of(struct bytes content, char path[PATH_SIZE])
{
    int fd = memfd_create("settings", MFD_CLOEXEC);

    FUZZ_CHECK(fd >= 0);
    FUZZ_CHECK(write(fd, content.data, content.size) == (ssize_t)content.size);
    (void)snprintf(path, PATH_SIZE, "/proc/self/fd/%d", fd);
    return fd;
}

static int read_settings(struct bytes content, struct settings *s, char why[SETTINGS_WHY_SIZE])
{
    char path[PATH_SIZE];
    int fd = file_of(content, path);

    FUZZ_CHECK(settings_init(s) == 0);
    int r = settings_from_file(s, path, why);
    (void)close(fd);
    if (r < 0) {
        unsigned long line = 0;
        size_t lines = 1;

        FUZZ_CHECK(r == -EINVAL);
        FUZZ_CHECK(strncmp(why, path, strlen(path)) == 0);
        FUZZ_CHECK(sscanf(why + strlen(path), ":%lu: ", &line) == 1);
        for (size_t i = 0; i < content.size; i++)
            lines += content.data[i] == '\n';
        FUZZ_CHECK(line >= 1 && line <= lines);
    }
    return r;
}

static void put_settings(struct buf *out, const struct settings *s)
{
    buf_append_str(out, "[walbusd]\n");
    for (size_t i = 0; i < settings_n_rows; i++) {
        const struct setting_row *row = &settings_rows[i];
        const void *at = (const char *)s + row->offset;

        if (s->sources[i] != SETTING_FILE)
            continue;
        if (row->type == SETTING_LIST) {
            const struct setting_list *list = at;

            for (size_t k = 0; k < list->n; k++)
                buf_printf(out, "%s = %s\n", row->name, list->values[k]);
        } else if (row->type == SETTING_STRING) {
            buf_printf(out, "%s = %s\n", row->name, *(char *const *)at);
        } else {
            buf_printf(out, "%s = ", row->name);
            put_setting_number(out, row, *(const uint64_t *)at);
            buf_append_u8(out, '\n');
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct settings s, again;
    struct buf text = BUF_INIT;
    char why[SETTINGS_WHY_SIZE] = "";

    if (read_settings((struct bytes){data, size}, &s, why) == 0) {
        put_settings(&text, &s);
        FUZZ_CHECK(read_settings(buf_bytes(&text), &again, why) == 0);
        for (size_t i = 0; i < settings_n_rows; i++) {
            FUZZ_CHECK(settings_row_equal(&s, &again, &settings_rows[i]));
            FUZZ_CHECK(s.sources[i] == again.sources[i]);
        }
        settings_deinit(&again);
    } else {
        FUZZ_CHECK_WHY(why);
    }
    settings_deinit(&s);
    buf_deinit(&text);
    return 0;
}
