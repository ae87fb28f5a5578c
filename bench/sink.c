/* The least of a cluster: `sink` prints its port and answers every request as a broker would that stored the message
 * at once, and as a name server that knows each topic with four queues on this very port. It stores nothing and ends
 * with its standard input. One thread, so that it takes one processor at most. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define INPUT (1 << 20)
#define OUTPUT (4 << 20)
#define PEERS 1024
#define ROUTE 105
#define HEAD_MAX 64

struct peer {
    int socket;
    int filled;
    unsigned char input[INPUT];
};

static int port;
static long long stored;
static char output[OUTPUT], route[512];

static long number_after(const char *header, int size, const char *name) {
    const char *at = memmem(header, size, name, strlen(name));
    return at ? strtol(at + strlen(name), NULL, 10) : 0;
}

/* Fields of the header proper come last, behind whatever text the properties hold. */
static long last_number_after(const char *header, int size, const char *name) {
    int length = strlen(name);
    for (int at = size - length; at >= 0; at--)
        if (!memcmp(header + at, name, length)) return strtol(header + at + length, NULL, 10);
    return 0;
}

static int put_frame(char *to, const char *header, int header_size, const char *body, int body_size) {
    uint32_t length = htonl(4 + header_size + body_size), size = htonl(header_size);
    memcpy(to, &length, 4);
    memcpy(to + 4, &size, 4);
    memcpy(to + 8, header, header_size);
    memcpy(to + 8 + header_size, body, body_size);
    return 8 + header_size + body_size;
}

static int answer(char *to, const char *header, int size) {
    long opaque = last_number_after(header, size, "\"opaque\":"), flag = last_number_after(header, size, "\"flag\":");
    if (flag & 2) return 0;
    char text[512];
    int is_route = number_after(header, size < HEAD_MAX ? size : HEAD_MAX, "\"code\":") == ROUTE, length;
    length = snprintf(text, sizeof text,
                      "{\"code\":0,\"extFields\":{\"queueId\":\"%ld\",\"queueOffset\":\"%lld\","
                      "\"msgId\":\"7F00000100002A9F%016llX\",\"transactionId\":\"7F00000100002A9F18B4AAC20000\","
                      "\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\"},\"flag\":1,\"language\":\"JAVA\","
                      "\"opaque\":%ld,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
                      number_after(header, size, "\"e\":\""), stored, stored * 200, opaque);
    stored++;
    return put_frame(to, text, length, route, is_route ? strlen(route) : 0);
}

static void write_all(int socket, const char *data, long size) {
    while (size > 0) {
        ssize_t n = write(socket, data, size);
        if (n <= 0) return;
        data += n;
        size -= n;
    }
}

/* False where the peer has gone. */
static int serve(struct peer *peer) {
    ssize_t n = read(peer->socket, peer->input + peer->filled, INPUT - peer->filled);
    if (n <= 0) return 0;
    peer->filled += n;
    int at = 0;
    long out = 0;
    while (peer->filled - at >= 8) {
        uint32_t length, header;
        memcpy(&length, peer->input + at, 4);
        memcpy(&header, peer->input + at + 4, 4);
        length = ntohl(length);
        if (peer->filled - at < 4 + (long)length) break;
        if (out > OUTPUT - 2048) { write_all(peer->socket, output, out); out = 0; }
        out += answer(output + out, (char *)peer->input + at + 8, ntohl(header) & 0xFFFFFF);
        at += 4 + length;
    }
    write_all(peer->socket, output, out);
    memmove(peer->input, peer->input + at, peer->filled - at);
    peer->filled -= at;
    return peer->filled < INPUT;
}

int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), loop = epoll_create1(0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (void *)&address, size) || listen(listener, 1024)) { perror("listen"); return 1; }
    getsockname(listener, (void *)&address, &size);
    port = ntohs(address.sin_port);
    snprintf(route, sizeof route,
             "{\"brokerDatas\":[{\"brokerAddrs\":{\"0\":\"127.0.0.1:%d\"},\"brokerName\":\"sink\","
             "\"cluster\":\"DefaultCluster\"}],\"filterServerTable\":{},\"queueDatas\":[{\"brokerName\":\"sink\","
             "\"perm\":6,\"readQueueNums\":4,\"topicSysFlag\":0,\"writeQueueNums\":4}]}", port);
    printf("%d\n", port);
    fflush(stdout);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[PEERS];
    epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event);
    static struct peer input_end;
    event.data.ptr = &input_end;
    epoll_ctl(loop, EPOLL_CTL_ADD, 0, &event);
    for (;;) {
        int count = epoll_wait(loop, events, PEERS, -1);
        for (int i = 0; i < count; i++) {
            struct peer *peer = events[i].data.ptr;
            if (peer == &input_end) {
                if (read(0, output, OUTPUT) <= 0) return 0;
            } else if (!peer) {
                peer = calloc(1, sizeof *peer);
                peer->socket = accept(listener, NULL, NULL);
                setsockopt(peer->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                event.data.ptr = peer;
                epoll_ctl(loop, EPOLL_CTL_ADD, peer->socket, &event);
            } else if (!serve(peer)) {
                close(peer->socket);
                free(peer);
            }
        }
    }
}
