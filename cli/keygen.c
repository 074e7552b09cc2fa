/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/text.h"
#include "codec/cose_key.h"
#include "file_write.h"

#define NAME "keygen"

struct keygen {
    const char *kid; /* NULL: the default */
};

/* All that is secret, in memory that sodium_malloc locks and leaves out of core dumps. */
struct secrets {
    uint8_t secret[COSE_KEY_SECRET_SIZE];
    uint8_t encoded[COSE_KEY_PRIVATE_ENCODED_MAX];
};

static const struct cli_option options[] = {
    {"kid", "TEXT",
     "The key's id, 1 to 255 bytes; shown in hexadecimal everywhere (default: 8 bytes of the "
     "public key's SHA-256 thumbprint)."},
    {NULL, NULL, NULL},
};

static int take_option(void *state, const struct cli_option *option, const char *value)
{
    struct keygen *k = state;
    size_t size = strlen(value);

    (void)option;
    if (size == 0 || size > COSE_KEY_KID_MAX)
        return cli_usage(NAME, "--kid is a text of 1 to %d bytes; %s.", COSE_KEY_KID_MAX,
                         size == 0 ? "this one is empty" : "this one is longer");
    k->kid = value;
    return CLI_OK;
}

/* The folder is what is wrong. */
static int cannot_make_there(const char *path, int r)
{
    const char *slash = strrchr(path, '/');
    int size = !slash ? 1 : slash == path ? 1 : (int)(slash - path);
    const char *folder = slash ? path : ".";

    if (r == -ENOENT)
        return cli_fail(NAME,
                        "There is no folder %.*s, and no key was made: 'install -d -o USER %.*s' as root makes it, for "
                        "the user that signs.",
                        size, folder, size, folder);
    return cli_fail(NAME,
                    "Cannot make %s: %s. No key was made: go to a folder, or name one, where this user may write.",
                    path, strerror(-r));
}

static int cannot_make(const char *path, int r)
{
    if (r == -EEXIST)
        return cli_fail(NAME,
                        "There is %s at %s already: nothing is overwritten, and no key was made.",
                        file_write_what_is_at(path), path);
    if (r == -ENOENT || r == -EACCES || r == -EPERM || r == -EROFS)
        return cannot_make_there(path, r);
    return cli_fail(NAME, "Cannot make %s: %s. No key was made.", path, strerror(-r));
}

/* Both files or none, by a signal neither. */
static int make_files(const char *path, const char *public_path, struct bytes private_key,
                      struct bytes public_key)
{
    sigset_t all, before;
    int status = CLI_OK;

    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before);
    /* The public one first: a private key without it is the worse half to be left with. */
    int r = file_write_new(public_path, 0644, public_key);

    if (r < 0) {
        status = cannot_make(public_path, r);
    } else if ((r = file_write_new(path, 0600, private_key)) < 0) {
        status = cannot_make(path, r);
        (void)unlink(public_path);
    } else if ((r = file_write_sync_folder(path)) < 0) {
        status = cannot_make(path, r);
        (void)unlink(path);
        (void)unlink(public_path);
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

static int make(struct cli *cli, const struct keygen *k, struct secrets *s, const char *path,
                const char *public_path)
{
    struct cose_key key = {.alg = 0};
    uint8_t public_key[COSE_KEY_PUBLIC_ENCODED_MAX];
    char hex[2 * COSE_KEY_KID_MAX + 1];
    int status;

    (void)crypto_sign_keypair(key.x, s->secret);
    if (k->kid) {
        key.kid_size = (uint8_t)strlen(k->kid);
        memcpy(key.kid, k->kid, key.kid_size);
    } else {
        key.kid_size = COSE_KEY_KID_DEFAULT_SIZE;
        cose_key_default_kid(&key, key.kid);
    }
    size_t private_size = cose_key_encode_private(&key, s->secret, s->encoded);
    size_t public_size = cose_key_encode_public(&key, public_key);

    cli_begin_change(cli, "The key is made");
    status = make_files(path, public_path, (struct bytes){s->encoded, private_size},
                        (struct bytes){public_key, public_size});
    if (status == CLI_OK)
        (void)puts(text_hex(key.kid, key.kid_size, hex));
    return status;
}

static int run(struct cli *cli, void *state, int argc, char **argv)
{
    struct buf public_path = BUF_INIT;
    struct secrets *s;
    int status;

    if (argc < 1)
        return cli_usage(NAME, "FILE is missing: where the private key goes.");
    if (argc > 1)
        return cli_usage(NAME, "FILE is one argument, '%s' is one more.", argv[1]);
    if (*argv[0] == '\0' || strcmp(argv[0], "-") == 0)
        return cli_usage(NAME, "'%s' is no file's name: a private key goes into a file only.",
                         argv[0]);
    buf_printf(&public_path, "%s.pub", argv[0]);
    s = public_path.failed || sodium_init() < 0 ? NULL : sodium_malloc(sizeof *s);
    if (!s || sodium_mlock(s, sizeof *s) < 0) { /* which sodium_malloc leaves out without a word */
        sodium_free(s);
        buf_deinit(&public_path);
        return cli_fail(NAME,
                        "There is not enough memory, or none that may be locked (ulimit -l).");
    }
    status = make(cli, state, s, argv[0], buf_str(&public_path));
    sodium_free(s); /* wipes it */
    buf_deinit(&public_path);
    return status;
}

const struct cli_command cli_command_keygen = {
    .name = NAME,
    .usage = "[OPTION...] FILE",
    .sentence = "Make a key that events are signed with.",
    .details =
        "Writes the private key to FILE, which only its owner can read, and the public one to\n"
        "FILE.pub; prints the key's id in hexadecimal. Neither file may be there yet. Both are\n"
        "COSE_Keys (RFC 9052) for Ed25519. The folder must be there, and its user may write there.\n"
        "\n"
        "Whoever publishes needs FILE, and nobody else; whoever verifies needs FILE.pub, in a "
        "trust\n"
        "file: 'walbus trust add' puts it there.\n"
        "\n"
        "Examples:\n"
        "  walbus keygen /etc/shop/orders.key\n"
        "  walbus keygen --kid orders-2026 orders.key",
    .options = options,
    .option = take_option,
    .common = cli_common_none,
    .run = run,
    .state_size = sizeof(struct keygen),
};
