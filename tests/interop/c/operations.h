/* The commands that start operations, and the reading of their completions. */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include <stdbool.h>

#include "command.h"
#include "endpoint.h"

/* Runs a command about operations; false for any other. */
bool operations_run(struct endpoint *endpoint, struct command *command);

/* Reads the completion queue once; returns whether it had an entry. */
bool operations_progress(struct endpoint *endpoint);

#endif
