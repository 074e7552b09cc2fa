/* SPDX-License-Identifier: PostgreSQL */
/*
 * The pages of the catalog's file, here of 256 bytes, so that an input has several; what is missing of the last is
 * filled up with zeros. The size in the metas is put right (no fuzzer finds it) unless the first byte says otherwise. A
 * file that is found sound must be so again with bytes changed that nobody looks at, and not without its last page in use.
 */
#include "catalog_check.h"

#include <errno.h>

#include "fuzz.h"

#define PAGE      256u
#define PAGES_MAX 64u

#define FLAG_SIZE_AS_IS 1

/* struct meta behind a page's header (8 + 8 bytes on a machine of 64 bits); no other is looked at here. */
#define META_MAP_SIZE  (sizeof(size_t) + 8 + 8 + sizeof(size_t))
#define META_LAST_PAGE (META_MAP_SIZE + sizeof(size_t) + 2 * (8 + 5 * sizeof(size_t)))

static size_t last_page(const uint8_t *file, size_t meta)
{
    size_t last;

    memcpy(&last, file + meta * PAGE + META_LAST_PAGE, sizeof last);
    return last;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    uint8_t flags = fuzz_u8(&in);
    size_t pages = MIN((in.left + PAGE - 1) / PAGE, (size_t)PAGES_MAX), used = MIN(in.left, pages * PAGE);
    uint8_t *file = calloc(pages + 1, PAGE), *exact = NULL;

    FUZZ_CHECK(file != NULL);
    if (used)
        memcpy(file, in.at, used);
    size = pages * PAGE;
    if (pages >= 2 && !(flags & FLAG_SIZE_AS_IS))
        for (size_t i = 0; i < 2; i++)
            memcpy(file + i * PAGE + META_MAP_SIZE, &size, sizeof size);
    exact = fuzz_copy((struct bytes){file, size});
    int r = catalog_check((struct bytes){exact, size}, PAGE);
    FUZZ_CHECK(r == 0 || r == -EBADMSG);
    FUZZ_CHECK(size == 0 || memcmp(exact, file, size) == 0);
    FUZZ_CHECK(catalog_check((struct bytes){exact, size / 2}, PAGE) == -EBADMSG);
    if (r == 0) {
        FUZZ_CHECK(pages >= 2 && last_page(file, 0) < pages && last_page(file, 1) < pages);
        exact[PAGE - 1] ^= 1; /* behind the meta, in its page */
        FUZZ_CHECK(catalog_check((struct bytes){exact, size}, PAGE) == 0);
        exact[sizeof(size_t) + 8] ^= 1; /* what says that it is LMDB's */
        FUZZ_CHECK(catalog_check((struct bytes){exact, size}, PAGE) == -EBADMSG);
    }
    free(exact);
    free(file);
    return 0;
}
