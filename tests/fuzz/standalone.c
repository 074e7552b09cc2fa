/* SPDX-License-Identifier: PostgreSQL */
/*
 * A fuzzer without libFuzzer: PROGRAM FOLDER runs the entry point over every file of the folder and
 * over every beginning of it, since a decoder has to take input that ends anywhere. The file's name
 * is printed before it runs, so that the last one named is the one at fault.
 */
#include <dirent.h>
#include <errno.h>

#include "fuzz.h"

/* Cuts of a longer file are taken at larger steps: that many in all, whatever its size. */
#define CUTS_MAX 512

static bool read_file(const char *path, uint8_t **ret_data, size_t *ret_size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t size = 0, n;

    if (!file)
        return false;
    do {
        uint8_t *more = realloc(data, size + 65536);

        if (!more)
            break;
        data = more;
        n = fread(data + size, 1, 65536, file);
        size += n;
    } while (n > 0);
    bool good = feof(file) && !ferror(file);
    if (fclose(file) != 0 || !good) {
        free(data);
        return false;
    }
    *ret_data = data;
    *ret_size = size;
    return true;
}

static void run(const uint8_t *data, size_t size)
{
    uint8_t *exact = fuzz_copy((struct bytes){data, size});

    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static int not_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    struct dirent **entries;
    int n = argc == 2 ? scandir(argv[1], &entries, not_hidden, alphasort) : -1;

    if (n <= 0) {
        (void)fprintf(stderr, "usage: %s FOLDER; there has to be a file in it\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < n; i++) {
        char path[4096];
        uint8_t *data;
        size_t size;

        (void)snprintf(path, sizeof path, "%s/%s", argv[1], entries[i]->d_name);
        (void)printf("%s\n", path);
        (void)fflush(stdout);
        if (!read_file(path, &data, &size)) {
            (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
            return 1;
        }
        size_t step = size / CUTS_MAX + 1;
        for (size_t cut = 0; cut < size; cut += step)
            run(data, cut);
        run(data, size);
        free(data);
        free(entries[i]);
    }
    free(entries);
    return 0;
}
