/* Load generator: `load PORT CONNECTIONS IN_FLIGHT TOTAL FRAME_FILE` sends one frame again and again over
 * several connections, keeps IN_FLIGHT requests open on each, and prints answers per second. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define BUFFER (1 << 18)

struct peer {
    int socket;
    int filled;
    unsigned char bytes[BUFFER];
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void send_frames(int socket, const char *frame, int size, int count) {
    static char batch[BUFFER];
    while (count > 0) {
        int fits = BUFFER / size, part = count < fits ? count : fits, done = 0;
        for (int i = 0; i < part; i++) memcpy(batch + i * size, frame, size);
        while (done < part * size) {
            ssize_t sent = write(socket, batch + done, part * size - done);
            if (sent <= 0) { perror("write"); exit(1); }
            done += sent;
        }
        count -= part;
    }
}

/* How many whole answers have arrived; what is left of the last one moves to the front. */
static int take_answers(struct peer *peer) {
    int position = 0, count = 0;
    while (peer->filled - position >= 4) {
        unsigned char *at = peer->bytes + position;
        int size = 4 + ((unsigned)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3]);
        if (peer->filled - position < size) break;
        position += size;
        count++;
    }
    memmove(peer->bytes, peer->bytes + position, peer->filled - position);
    peer->filled -= position;
    return count;
}

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "usage: load PORT CONNECTIONS IN_FLIGHT TOTAL FRAME_FILE\n"); return 2; }
    int connections = atoi(argv[2]), in_flight = atoi(argv[3]);
    long total = atol(argv[4]), sent = 0, answered = 0;
    char frame[65536];
    FILE *file = fopen(argv[5], "rb");
    if (!file) { perror(argv[5]); return 1; }
    int size = fread(frame, 1, sizeof frame, file);
    fclose(file);
    struct peer *peers = calloc(connections, sizeof *peers);
    int poll = epoll_create1(0), one = 1;
    for (int i = 0; i < connections; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        peers[i].socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(peers[i].socket, (void *)&address, sizeof address)) { perror("connect"); return 1; }
        setsockopt(peers[i].socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        epoll_ctl(poll, EPOLL_CTL_ADD, peers[i].socket, &event);
    }
    double start = now();
    for (int i = 0; i < connections; i++, sent += in_flight) send_frames(peers[i].socket, frame, size, in_flight);
    while (answered < total) {
        struct epoll_event events[256];
        int ready = epoll_wait(poll, events, 256, 5000);
        if (ready <= 0) { fprintf(stderr, "no answer in 5 s\n"); return 1; }
        for (int k = 0; k < ready; k++) {
            struct peer *peer = &peers[events[k].data.u32];
            ssize_t got = read(peer->socket, peer->bytes + peer->filled, BUFFER - peer->filled);
            if (got <= 0) { fprintf(stderr, "the server closed a connection\n"); return 1; }
            peer->filled += got;
            int count = take_answers(peer);
            answered += count;
            if (sent < total) {
                send_frames(peer->socket, frame, size, count);
                sent += count;
            }
        }
    }
    printf("%.0f\n", answered / (now() - start));
    return 0;
}
