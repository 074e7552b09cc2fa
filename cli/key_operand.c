/* SPDX-License-Identifier: PostgreSQL */
#include "key_operand.h"

#include <errno.h>

#include "base/buf.h"
#include "keys/key_file.h"

/* Whether the file beside it that keygen makes is its public key. */
static bool has_public_beside(const char *path)
{
    char why[KEY_FILE_WHY_SIZE];
    struct buf beside = BUF_INIT;
    struct cose_key key;

    buf_printf(&beside, "%s.pub", path);
    bool found = !beside.failed && key_file_read_public(buf_str(&beside), &key, why) == 0;
    buf_deinit(&beside);
    return found;
}

int key_operand_public(const char *command, const char *path, struct cose_key *ret)
{
    char why[KEY_FILE_WHY_SIZE];
    int r = key_file_read_public(path, ret, why);

    if (r == 0)
        return CLI_OK;
    return r == -EBADMSG && has_public_beside(path)
               ? cli_fail(command, "%s Its public one is %s.pub.", why, path)
               : cli_fail(command, "%s", why);
}

int key_operand_not_private(const char *command, const char *path, const char *why)
{
    char unused[KEY_FILE_WHY_SIZE];
    struct cose_key key;

    /* Before who may read it: with another mode it would still be of no use. */
    if (key_file_read_public(path, &key, unused) == 0)
        return cli_fail(command,
                        "%s is a public key, and it takes a private one to sign: the file that "
                        "'walbus keygen' made beside it.",
                        path);
    return cli_fail(command, "%s", why);
}
