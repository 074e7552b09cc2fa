/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_KEY_OPERAND_H
#define WALBUS_CLI_KEY_OPERAND_H

/* The keys that commands are given as files. */

#include "base/macros.h"
#include "cli.h"
#include "codec/cose_key.h"

/** Reads a public key. CLI_OK; else says why, and what mends it, and returns CLI_FAILED. */
int key_operand_public(const char *command, const char *path, struct cose_key *ret) MUST_CHECK;

/** Says why a private key's file cannot be used, in the sentence `why`, and what mends it; returns
 *  CLI_FAILED. */
int key_operand_not_private(const char *command, const char *path, const char *why);

#endif
