/* The commands that start operations, and the reading of their completions. */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include <stdbool.h>

#include "command.h"
#include "endpoint.h"

/* Runs a command about operations; false if it is none. */
bool operations_run(struct endpoint *endpoint, struct command *command);

/* Reads the completion queue once; tells whether something was there. */
bool operations_progress(struct endpoint *endpoint);

#endif
