/* Output of the peer: results on standard output, one a line; fatal errors on standard error. */
#ifndef REPORT_H
#define REPORT_H

#include <rdma/fi_eq.h>
#include <sys/types.h>

/* A line of a result. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* Ends the process with an error. */
__attribute__((format(printf, 1, 2), noreturn)) void die(const char *format, ...);

/* Ends the process if a call of libfabric failed. */
void require(ssize_t result, const char *call);

/* The line `done …` or `failed …` of a completion; `name` is the operation's id. */
void say_done(const char *name, const struct fi_cq_tagged_entry *entry, fi_addr_t source);
void say_failed(const char *name, const struct fi_cq_err_entry *entry, const char *provider);

#endif
