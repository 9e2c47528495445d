/* Connections of MSG endpoints: listen, connect, accept, reject, shutdown, private data; messages and RMA over them. */
#include "program.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>

enum { MILLISECONDS = (int)(PATIENCE * 1000) };

/* A listener. */
struct server {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_pep *pep;
};

/* One side of a connection. */
struct end {
	struct fid_eq *eq;
	struct fid_cq *tx, *rx;
	struct fid_ep *ep;
};

static struct fi_info *msg_hints(void)
{
	struct fi_info *hints = fi_allocinfo();

	hints->fabric_attr->prov_name = strdup(provider());
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	return hints;
}

/* All event queues that are open: a provider may connect only while the program looks at them. */
static struct fid_eq *queues[64];

static struct fid_eq *open_eq(struct fid_fabric *fabric)
{
	struct fi_eq_attr attr = { .size = 16, .wait_obj = FI_WAIT_UNSPEC };
	size_t place = 0;

	while (queues[place])
		place++;
	OK(fi_eq_open(fabric, &attr, &queues[place], NULL));
	return queues[place];
}

static void close_eq(struct fid_eq *eq)
{
	for (size_t i = 0; i < COUNT(queues); i++)
		if (queues[i] == eq)
			queues[i] = NULL;
	OK(fi_close(&eq->fid));
}

/* Reads an event; waits for it, and lets the others work meanwhile. */
static ssize_t read_event(struct fid_eq *eq, uint32_t *event, void *room, size_t length)
{
	double end = now() + PATIENCE;
	ssize_t result;
	char other[1024];
	uint32_t other_event;

	while ((result = fi_eq_read(eq, event, room, length, 0)) == -FI_EAGAIN && now() < end)
		for (size_t i = 0; i < COUNT(queues); i++)
			if (queues[i])
				(void)fi_eq_read(queues[i], &other_event, other, sizeof(other), FI_PEEK);
	return result;
}

static void open_server(struct server *server)
{
	struct fi_info *hints = msg_hints();
	int result = fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &server->info);

	if (result == -FI_ENODATA)
		not_offered("FI_EP_MSG");
	OK(result);
	EQUAL(server->info->ep_attr->type, FI_EP_MSG);
	fi_freeinfo(hints);
	OK(fi_fabric(server->info->fabric_attr, &server->fabric, NULL));
	OK(fi_domain(server->fabric, server->info, &server->domain, NULL));
	server->eq = open_eq(server->fabric);
	OK(fi_passive_ep(server->fabric, server->info, &server->pep, CONTEXT(40)));
	OK(fi_pep_bind(server->pep, &server->eq->fid, 0));
	OK(fi_listen(server->pep));
}

static void close_server(struct server *server)
{
	OK(fi_close(&server->pep->fid));
	close_eq(server->eq);
	OK(fi_close(&server->domain->fid));
	OK(fi_close(&server->fabric->fid));
	fi_freeinfo(server->info);
}

/* Whether ends complete selectively. */
static bool is_selective;

/* The context of receives of the ends that are opened for requests, if they share one. */
static struct fid_ep *srx;

static void open_end(struct server *server, struct fi_info *info, struct end *end)
{
	struct fi_cq_attr cq = { .size = 64, .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };

	OK(fi_endpoint(server->domain, info, &end->ep, end));
	end->eq = open_eq(server->fabric);
	OK(fi_cq_open(server->domain, &cq, &end->tx, NULL));
	OK(fi_cq_open(server->domain, &cq, &end->rx, NULL));
	OK(fi_ep_bind(end->ep, &end->eq->fid, 0));
	OK(fi_ep_bind(end->ep, &end->tx->fid, FI_TRANSMIT | (is_selective ? FI_SELECTIVE_COMPLETION : 0)));
	OK(fi_ep_bind(end->ep, &end->rx->fid, FI_RECV | (is_selective ? FI_SELECTIVE_COMPLETION : 0)));
	if (srx && info->handle)
		OK(fi_ep_bind(end->ep, &srx->fid, 0));
	OK(fi_enable(end->ep));
}

static void close_end(struct end *end)
{
	OK(fi_close(&end->ep->fid));
	OK(fi_close(&end->tx->fid));
	OK(fi_close(&end->rx->fid));
	close_eq(end->eq);
}

/* The next event of a queue, with its private data. */
static size_t next_event(struct fid_eq *eq, uint32_t expected, struct fi_eq_cm_entry *entry, size_t room)
{
	uint32_t event = 0;
	ssize_t length = read_event(eq, &event, entry, sizeof(*entry) + room);

	if (length == -FI_EAVAIL) {
		struct fi_eq_err_entry error = { 0 };

		EQUAL(fi_eq_readerr(eq, &error, 0), sizeof(error));
		FAIL("a failed event: %s", fi_strerror(error.err));
	}
	if (length < (ssize_t)sizeof(*entry))
		FAIL("an event of %zd bytes: %s", length, length < 0 ? fi_strerror((int)-length) : "too short");
	EQUAL(event, expected);
	return (size_t)length - sizeof(*entry);
}

/* Room for an event with private data. */
union room {
	struct fi_eq_cm_entry entry;
	char bytes[sizeof(struct fi_eq_cm_entry) + 256];
};

static const void *name_of(struct server *server)
{
	static char name[NAME];
	size_t length = sizeof(name);

	OK(fi_getname(&server->pep->fid, name, &length));
	CHECK(((struct sockaddr_in *)name)->sin_port);
	return name;
}

static struct fi_info *client_info(struct server *server)
{
	const struct sockaddr_in *name = name_of(server);
	struct fi_info *hints = msg_hints(), *info;
	char port[16];

	snprintf(port, sizeof(port), "%d", ntohs(name->sin_port));
	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", port, 0, hints, &info));
	CHECK(info->dest_addr);
	EQUAL(((struct sockaddr_in *)info->dest_addr)->sin_port, name->sin_port);
	fi_freeinfo(hints);
	return info;
}

static void connect_ends(struct server *server, struct end *client, struct end *other)
{
	struct fi_info *info = client_info(server);
	union room room;

	open_end(server, info, client);
	OK(fi_connect(client->ep, info->dest_addr, "hello", 5));
	EQUAL(next_event(server->eq, FI_CONNREQ, &room.entry, 256), 5);
	EQUAL((uintptr_t)room.entry.fid, (uintptr_t)&server->pep->fid);
	SAME_BYTES(room.entry.data, "hello", 5);
	CHECK(room.entry.info);
	CHECK(room.entry.info->handle);
	open_end(server, room.entry.info, other);
	OK(fi_accept(other->ep, "welcome", 7));
	fi_freeinfo(room.entry.info);
	EQUAL(next_event(client->eq, FI_CONNECTED, &room.entry, 256), 7);
	EQUAL((uintptr_t)room.entry.fid, (uintptr_t)&client->ep->fid);
	SAME_BYTES(room.entry.data, "welcome", 7);
	next_event(other->eq, FI_CONNECTED, &room.entry, 256);
	EQUAL((uintptr_t)room.entry.fid, (uintptr_t)&other->ep->fid);
	fi_freeinfo(info);
}

static void take_both(struct end *from, struct end *at, void *sent, void *received, size_t length)
{
	bool one = false, other = false;
	double end = now() + PATIENCE;

	while (!one || !other) {
		struct fi_cq_tagged_entry entry;
		ssize_t count = fi_cq_read(from->tx, &entry, 1);

		if (count == 1) {
			EQUAL((uintptr_t)entry.op_context, (uintptr_t)sent);
			one = true;
		} else {
			FAILS(count, FI_EAGAIN);
		}
		count = fi_cq_read(at->rx, &entry, 1);
		if (count == 1) {
			EQUAL((uintptr_t)entry.op_context, (uintptr_t)received);
			EQUAL(entry.len, length);
			other = true;
		} else {
			FAILS(count, FI_EAGAIN);
		}
		CHECK(now() < end);
	}
}

static void messages(void)
{
	static char there[200000], here[200000];
	struct server server;
	struct end client, other;

	open_server(&server);
	connect_ends(&server, &client, &other);
	for (size_t length = 2; length <= sizeof(there); length *= 10)
		for (int back = 0; back < 2; back++) {
			struct end *from = back ? &other : &client, *at = back ? &client : &other;

			fill(there, length, (unsigned)length);
			OK(fi_recv(at->ep, here, length, NULL, 0, CONTEXT(1)));
			OK(fi_send(from->ep, there, length, NULL, 0, CONTEXT(2)));
			take_both(from, at, CONTEXT(2), CONTEXT(1), length);
			FILLED(here, length, (unsigned)length);
		}
	close_end(&client);
	close_end(&other);
	close_server(&server);
}

/* Names of both sides. */
static void names(void)
{
	struct server server;
	struct end client, other;
	struct sockaddr_in name, peer;
	size_t length;

	open_server(&server);
	connect_ends(&server, &client, &other);
	length = sizeof(peer);
	OK(fi_getpeer(client.ep, &peer, &length));
	EQUAL(peer.sin_family, AF_INET);
	EQUAL(ntohl(peer.sin_addr.s_addr), INADDR_LOOPBACK);
	if (is_ours())
		EQUAL(peer.sin_port, ((const struct sockaddr_in *)name_of(&server))->sin_port);
	length = sizeof(name);
	OK(fi_getname(&client.ep->fid, &name, &length));
	EQUAL(name.sin_family, AF_INET);
	close_end(&client);
	close_end(&other);
	close_server(&server);
}

/* A rejected side learns so, with the data. */
static void rejected(void)
{
	struct server server;
	struct end client;
	struct fi_info *info;
	struct fi_eq_err_entry error = { 0 };
	char data[64];
	union room room;
	uint32_t event;

	open_server(&server);
	info = client_info(&server);
	open_end(&server, info, &client);
	OK(fi_connect(client.ep, info->dest_addr, NULL, 0));
	EQUAL(next_event(server.eq, FI_CONNREQ, &room.entry, 256), 0);
	OK(fi_reject(server.pep, room.entry.info->handle, "no", 2));
	fi_freeinfo(room.entry.info);
	FAILS(read_event(client.eq, &event, &room, sizeof(room)), FI_EAVAIL);
	error.err_data = data;
	error.err_data_size = sizeof(data);
	CHECK(fi_eq_readerr(client.eq, &error, 0) > 0);
	EQUAL(error.err, FI_ECONNREFUSED);
	EQUAL((uintptr_t)error.fid, (uintptr_t)&client.ep->fid);
	EQUAL(error.err_data_size, 2);
	SAME_BYTES(error.err_data, "no", 2);
	/* The listener serves the next. */
	close_end(&client);
	fi_freeinfo(info);
	struct end other;

	connect_ends(&server, &client, &other);
	close_end(&client);
	close_end(&other);
	close_server(&server);
}

/* Nobody listens. */
static void refused_by_none(void)
{
	struct server server;
	struct end client;
	struct fi_info *info;
	struct fi_eq_err_entry error = { 0 };
	union room room;
	uint32_t event;
	double before;

	open_server(&server);
	info = client_info(&server);
	/* The listener's socket ends with it. */
	OK(fi_close(&server.pep->fid));
	open_end(&server, info, &client);
	before = now();
	OK(fi_connect(client.ep, info->dest_addr, NULL, 0));
	FAILS(read_event(client.eq, &event, &room, sizeof(room)), FI_EAVAIL);
	CHECK(now() - before < PATIENCE);
	CHECK(fi_eq_readerr(client.eq, &error, 0) > 0);
	EQUAL(error.err, FI_ECONNREFUSED);
	close_end(&client);
	close_eq(server.eq);
	OK(fi_close(&server.domain->fid));
	OK(fi_close(&server.fabric->fid));
	fi_freeinfo(server.info);
	fi_freeinfo(info);
}

/* Shutdown and close tell the other side; what it receives later fails. */
static void shut_down(void)
{
	for (int closed = 0; closed < 2; closed++) {
		struct server server;
		struct end client, other;
		union room room;
		char here[8];
		struct fi_cq_err_entry error = { 0 };
		struct fi_cq_tagged_entry entry;

		open_server(&server);
		connect_ends(&server, &client, &other);
		OK(fi_recv(other.ep, here, 8, NULL, 0, CONTEXT(3)));
		if (closed)
			close_end(&client);
		else
			OK(fi_shutdown(client.ep, 0));
		next_event(other.eq, FI_SHUTDOWN, &room.entry, 256);
		EQUAL((uintptr_t)room.entry.fid, (uintptr_t)&other.ep->fid);
		if (is_ours()) {
			FAILS(fi_cq_sread(other.rx, &entry, 1, NULL, MILLISECONDS), FI_EAVAIL);
			EQUAL(fi_cq_readerr(other.rx, &error, 0), 1);
			EQUAL((uintptr_t)error.op_context, (uintptr_t)CONTEXT(3));
			CHECK(error.err);
			CHECK(fi_send(other.ep, "x", 1, NULL, 0, NULL) < 0);
		}
		if (!closed)
			close_end(&client);
		close_end(&other);
		close_server(&server);
	}
}

static atomic_bool is_over;

static void *shuts_down(void *ep)
{
	OK(fi_shutdown(ep, 0));
	atomic_store(&is_over, true);
	return NULL;
}

/* While a thread shuts a connection down whose other side doesn't work, another closes regions and waits for none. */
static void shut_down_beside(void)
{
	static char memory[1 << 20];
	struct server server;
	struct end client, other;
	pthread_t thread;

	if (!is_ours())
		not_offered("a shutdown that takes its time");
	open_server(&server);
	connect_ends(&server, &client, &other);
	for (int i = 0; i < 4; i++)
		OK(fi_send(client.ep, memory, sizeof(memory), NULL, 0, CONTEXT(i)));
	OK(pthread_create(&thread, NULL, shuts_down, client.ep));
	/* One that waited for the shutdown would be the last. */
	CHECK(close_regions_until(&is_over, server.domain, FI_SEND) > 10);
	OK(pthread_join(thread, NULL));
	close_end(&client);
	close_end(&other);
	close_server(&server);
}

/* Several connections of one listener, each with its own messages. */
static void several(void)
{
	enum { CONNECTIONS = 8 };
	struct server server;
	struct end client[CONNECTIONS], other[CONNECTIONS];
	char here[8];

	open_server(&server);
	for (int i = 0; i < CONNECTIONS; i++)
		connect_ends(&server, &client[i], &other[i]);
	for (int i = 0; i < CONNECTIONS; i++) {
		char byte = (char)i;

		OK(fi_recv(other[i].ep, here, 8, NULL, 0, CONTEXT(1)));
		OK(fi_send(client[i].ep, &byte, 1, NULL, 0, CONTEXT(2)));
		take_both(&client[i], &other[i], CONTEXT(2), CONTEXT(1), 1);
		EQUAL(here[0], i);
	}
	for (int i = 0; i < CONNECTIONS; i++) {
		close_end(&client[i]);
		close_end(&other[i]);
	}
	close_server(&server);
}

static void shared_receives(void)
{
	enum { CONNECTIONS = 3 };
	struct server server;
	struct end client[CONNECTIONS], other[CONNECTIONS];
	char here[CONNECTIONS][8];

	open_server(&server);
	OK(fi_srx_context(server.domain, NULL, &srx, NULL));
	for (int i = 0; i < CONNECTIONS; i++)
		connect_ends(&server, &client[i], &other[i]);
	for (int i = 0; i < CONNECTIONS; i++)
		OK(fi_recv(srx, here[i], 8, NULL, 0, CONTEXT(i)));
	for (int i = 0; i < CONNECTIONS; i++) {
		int at = CONNECTIONS - 1 - i;
		char byte = (char)at;

		OK(fi_send(client[at].ep, &byte, 1, NULL, 0, CONTEXT(10)));
		take_both(&client[at], &other[at], CONTEXT(10), CONTEXT(i), 1);
		EQUAL(here[i][0], at);
	}
	for (int i = 0; i < CONNECTIONS; i++) {
		close_end(&client[i]);
		close_end(&other[i]);
	}
	OK(fi_close(&srx->fid));
	srx = NULL;
	close_server(&server);
}

/* The side that connects, in a thread of its own, which sleeps until it is connected. */
struct caller {
	struct server *server;
	struct end end;
};

static void *call(void *argument)
{
	struct caller *caller = argument;
	struct fi_info *info = client_info(caller->server);
	union room room;
	uint32_t event;

	open_end(caller->server, info, &caller->end);
	OK(fi_connect(caller->end.ep, info->dest_addr, "hi", 2));
	EQUAL(fi_eq_sread(caller->end.eq, &event, &room, sizeof(room), MILLISECONDS, 0), sizeof(struct fi_eq_cm_entry));
	EQUAL(event, FI_CONNECTED);
	fi_freeinfo(info);
	return NULL;
}

/* Both sides sleep until an event comes. */
static void waited_for(void)
{
	struct server server;
	struct caller caller = { .server = &server };
	struct end other;
	pthread_t thread;
	union room room;
	uint32_t event;

	open_server(&server);
	FAILS(fi_eq_sread(server.eq, &event, &room, sizeof(room), 50, 0), FI_EAGAIN);
	OK(pthread_create(&thread, NULL, call, &caller));
	EQUAL(fi_eq_sread(server.eq, &event, &room, sizeof(room), MILLISECONDS, 0), sizeof(struct fi_eq_cm_entry) + 2);
	EQUAL(event, FI_CONNREQ);
	open_end(&server, room.entry.info, &other);
	OK(fi_accept(other.ep, NULL, 0));
	fi_freeinfo(room.entry.info);
	EQUAL(fi_eq_sread(other.eq, &event, &room, sizeof(room), MILLISECONDS, 0), sizeof(struct fi_eq_cm_entry));
	EQUAL(event, FI_CONNECTED);
	OK(pthread_join(thread, NULL));
	close_end(&caller.end);
	close_end(&other);
	close_server(&server);
}

/* Of operations over a connection only those complete that ask for it. */
static void selective(void)
{
	struct server server;
	struct end client, other;
	char here[4][8], there[4] = "abcd";

	open_server(&server);
	is_selective = true;
	connect_ends(&server, &client, &other);
	is_selective = false;
	for (int i = 0; i < 4; i++) {
		struct iovec piece = { here[i], 8 }, sent = { there + i, 1 };
		struct fi_msg receive = { .msg_iov = &piece, .iov_count = 1, .context = CONTEXT(i) };
		struct fi_msg send = { .msg_iov = &sent, .iov_count = 1, .context = CONTEXT(8 + i) };
		uint64_t flags = i == 3 ? FI_COMPLETION : 0;

		OK(i == 1 ? fi_recv(other.ep, here[i], 8, NULL, 0, CONTEXT(i)) : fi_recvmsg(other.ep, &receive, flags));
		OK(i == 1 ? fi_send(client.ep, there + i, 1, NULL, 0, CONTEXT(9)) : fi_sendmsg(client.ep, &send, flags));
	}
	take_both(&client, &other, CONTEXT(11), CONTEXT(3), 1);
	for (int i = 0; i < 4; i++)
		EQUAL(here[i][0], 'a' + i);
	close_end(&client);
	close_end(&other);
	close_server(&server);
}

/* Private data up to the limit that the endpoint tells; what is beyond is cut off. */
static void most_data(void)
{
	struct server server;
	struct end client, other;
	struct fi_info *info;
	union room room;
	char data[300];
	size_t most = 0, length = sizeof(most);

	if (!is_ours())
		not_offered("a limit of private data");
	fill(data, sizeof(data), 1);
	open_server(&server);
	OK(fi_getopt(&server.pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &most, &length));
	EQUAL(most, 256);
	info = client_info(&server);
	open_end(&server, info, &client);
	most = 0;
	OK(fi_getopt(&client.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &most, &length));
	EQUAL(most, 256);
	FAILS(fi_connect(client.ep, info->dest_addr, NULL, 5), FI_EINVAL);
	FAILS(fi_connect(client.ep, info->dest_addr, data, 257), FI_EINVAL);
	OK(fi_connect(client.ep, info->dest_addr, data, 256));
	EQUAL(next_event(server.eq, FI_CONNREQ, &room.entry, 256), 256);
	FILLED(room.entry.data, 256, 1);
	open_end(&server, room.entry.info, &other);
	FAILS(fi_accept(other.ep, NULL, 5), FI_EINVAL);
	OK(fi_accept(other.ep, data, 256));
	fi_freeinfo(room.entry.info);
	/* Room for a part of it. */
	EQUAL(next_event(client.eq, FI_CONNECTED, &room.entry, 10), 10);
	FILLED(room.entry.data, 10, 1);
	next_event(other.eq, FI_CONNECTED, &room.entry, 256);
	close_end(&client);
	close_end(&other);
	close_server(&server);
	fi_freeinfo(info);
}

/* What is out of turn gives an error, and the listener serves on: calls without a connection, answers given twice. */
static void out_of_turn(void)
{
	struct server server;
	struct end client, other, third;
	struct fi_info *info, *request;
	struct fid_ep *ep;
	union room room;
	uint32_t event;

	if (!is_ours())
		not_offered("checks of what programs must not do");
	open_server(&server);
	info = client_info(&server);
	open_end(&server, info, &client);
	CHECK(fi_send(client.ep, "x", 1, NULL, 0, NULL) < 0);
	CHECK(fi_shutdown(client.ep, 0) < 0);
	CHECK(fi_accept(client.ep, NULL, 0) < 0);
	CHECK(fi_listen(server.pep) < 0);
	CHECK(fi_reject(server.pep, NULL, NULL, 0) < 0);
	CHECK(fi_reject(server.pep, &server.pep->fid, NULL, 0) < 0);
	OK(fi_connect(client.ep, info->dest_addr, NULL, 0));
	CHECK(fi_connect(client.ep, info->dest_addr, NULL, 0) < 0);
	next_event(server.eq, FI_CONNREQ, &room.entry, 256);
	request = room.entry.info;
	open_end(&server, request, &other);
	/* The request has its endpoint. */
	CHECK(fi_reject(server.pep, request->handle, NULL, 0) < 0);
	CHECK(fi_endpoint(server.domain, request, &ep, NULL) < 0);
	OK(fi_accept(other.ep, NULL, 0));
	CHECK(fi_accept(other.ep, NULL, 0) < 0);
	next_event(client.eq, FI_CONNECTED, &room.entry, 256);
	next_event(other.eq, FI_CONNECTED, &room.entry, 256);
	CHECK(fi_connect(client.ep, info->dest_addr, NULL, 0) < 0);
	fi_freeinfo(request);
	FAILS(fi_close(&server.eq->fid), FI_EBUSY);
	FAILS(fi_close(&client.eq->fid), FI_EBUSY);
	/* One that nobody answers ends with the listener. */
	open_end(&server, info, &third);
	OK(fi_connect(third.ep, info->dest_addr, NULL, 0));
	for (int i = 0; i < 1000; i++)
		(void)fi_eq_read(server.eq, &event, &room, sizeof(room), FI_PEEK);
	close_end(&client);
	close_end(&other);
	close_end(&third);
	close_server(&server);
	fi_freeinfo(info);
}

/* A message can be here before the event that says that its sender is connected, and is answered at once. */
static void answered_early(void)
{
	struct server server;
	struct end client, other;
	struct fi_info *info;
	union room room;
	char there[8] = "early", here[2][8];
	uint32_t event;
	ssize_t result;
	double end = now() + PATIENCE;

	if (!is_ours())
		not_offered("an answer before FI_CONNECTED was read");
	open_server(&server);
	info = client_info(&server);
	open_end(&server, info, &client);
	OK(fi_connect(client.ep, info->dest_addr, NULL, 0));
	next_event(server.eq, FI_CONNREQ, &room.entry, 256);
	open_end(&server, room.entry.info, &other);
	fi_freeinfo(room.entry.info);
	OK(fi_recv(other.ep, here[0], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(0)));
	OK(fi_recv(client.ep, here[1], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
	OK(fi_accept(other.ep, NULL, 0));
	/* Only the client looks at its events. */
	while ((result = fi_eq_read(client.eq, &event, &room, sizeof(room), 0)) == -FI_EAGAIN)
		CHECK(now() < end);
	EQUAL(event, FI_CONNECTED);
	FAILS(fi_send(other.ep, there, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(2)), FI_ENOTCONN);
	OK(fi_send(client.ep, there, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(3)));
	take_both(&client, &other, CONTEXT(3), CONTEXT(0), 8);
	OK(fi_send(other.ep, here[0], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
	take_both(&other, &client, CONTEXT(2), CONTEXT(1), 8);
	SAME_TEXT(here[1], there);
	next_event(other.eq, FI_CONNECTED, &room.entry, 256);
	close_end(&client);
	close_end(&other);
	close_server(&server);
	fi_freeinfo(info);
}

const struct program connections[] = {
	{ "connections-waited-for", waited_for },
	{ "connections-messages", messages },
	{ "connections-answered-early", answered_early },
	{ "connections-names", names },
	{ "connections-rejected", rejected },
	{ "connections-refused-by-none", refused_by_none },
	{ "connections-shut-down", shut_down },
	{ "connections-shut-down-beside", shut_down_beside },
	{ "connections-several", several },
	{ "connections-shared-receives", shared_receives },
	{ "connections-selective", selective },
	{ "connections-most-data", most_data },
	{ "connections-out-of-turn", out_of_turn },
	{ NULL, NULL },
};
