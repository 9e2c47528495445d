#include "report.h"

#include <inttypes.h>
#include <rdma/fi_errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void say(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	fflush(stdout);
}

void die(const char *format, ...)
{
	va_list arguments;

	fputs("peer: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(EXIT_FAILURE);
}

void require(ssize_t result, const char *call)
{
	if (result < 0)
		die("%s: %s", call, fi_strerror((int)-result));
}

/* The bits of a completion as words, with `+` between them. */
static const char *flag_words(uint64_t flags)
{
	static const struct {
		uint64_t bit;
		const char *word;
	} names[] = {
		{ FI_SEND, "send" }, { FI_RECV, "recv" }, { FI_MSG, "msg" }, { FI_TAGGED, "tagged" },
		{ FI_RMA, "rma" }, { FI_ATOMIC, "atomic" }, { FI_READ, "read" }, { FI_WRITE, "write" },
		{ FI_REMOTE_READ, "remote-read" }, { FI_REMOTE_WRITE, "remote-write" },
		{ FI_REMOTE_CQ_DATA, "data" }, { FI_MULTI_RECV, "multi" },
	};
	static char text[160];
	uint64_t left = flags & ~FI_COMPLETION;

	text[0] = '\0';
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (left & names[i].bit) {
			strcat(strcat(text, *text ? "+" : ""), names[i].word);
			left &= ~names[i].bit;
		}
	}
	if (left)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s0x%" PRIx64, *text ? "+" : "", left);
	return *text ? text : "none";
}

static const char *source_text(fi_addr_t source)
{
	static char text[24];

	if (source == FI_ADDR_NOTAVAIL)
		return "none";
	snprintf(text, sizeof(text), "%" PRIu64, source);
	return text;
}

void say_done(const char *name, const struct fi_cq_tagged_entry *entry, fi_addr_t source)
{
	say("done id=%s flags=%s length=%zu tag=0x%" PRIx64 " data=0x%" PRIx64 " from=%s", name,
	    flag_words(entry->flags), entry->len, entry->tag, entry->data, source_text(source));
}

void say_failed(const char *name, const struct fi_cq_err_entry *entry, const char *provider)
{
	say("failed id=%s flags=%s error=%d provider-error=%d length=%zu beyond=%zu tag=0x%" PRIx64
	    " data=0x%" PRIx64,
	    name, flag_words(entry->flags), entry->err, entry->prov_errno, entry->len, entry->olen,
	    entry->tag, entry->data);
	fprintf(stderr, "peer: operation %s failed: %s (%s)\n", name, fi_strerror(entry->err), provider);
}
