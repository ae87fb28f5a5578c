/* Load generator: `load PORT CONNECTIONS IN_FLIGHT TOTAL FRAME_FILE [RATE]` sends the frames of a file round and
 * round over several connections and keeps IN_FLIGHT requests open on each. With a RATE so many are sent a second,
 * each at its time, and what came late through a slow server counts as late.
 *
 * Prints: answers a second, answers whose code is not 0, bytes a second, and how long an answer took in
 * microseconds: median, 99th percentile, longest. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define WHEEL (1 << 18)
#define HEAD 18 /* length, length of the header, and what it begins with where all is well */
static const char SUCCESS[] = "{\"code\":0,";

struct peer {
    int socket;
    int open;           /* requests without an answer */
    long left;          /* bytes of the present answer that are still to come */
    int filled;
    unsigned char head[HEAD];
    double *sent_at;    /* of the open requests, as a ring */
    long first;
};

static char *wheel;     /* the frames, repeated */
static int *starts, frames, next_frame;
static double *took;
static long sent, answered, failed, received;
static int in_flight;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void read_frames(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) { perror(path); exit(1); }
    static char once[WHEEL];
    int size = fread(once, 1, sizeof once, file), times = WHEEL / size + 1;
    fclose(file);
    wheel = malloc((size_t)size * times);
    starts = malloc(sizeof *starts * ((size_t)size * times / 8 + 2));
    for (int i = 0; i < times; i++) memcpy(wheel + (size_t)i * size, once, size);
    for (int at = 0; at < size * times; frames++) {
        starts[frames] = at;
        uint32_t length;
        memcpy(&length, wheel + at, 4);
        at += 4 + ntohl(length);
    }
    starts[frames] = size * times;
}

static void send_frames(struct peer *peer, int count, double at) {
    sent += count;
    for (int i = 0; i < count; i++) peer->sent_at[(peer->first + peer->open++) % in_flight] = at;
    while (count > 0) {
        int part = count < frames - next_frame ? count : frames - next_frame;
        const char *data = wheel + starts[next_frame];
        long size = starts[next_frame + part] - starts[next_frame], done = 0;
        while (done < size) {
            ssize_t n = write(peer->socket, data + done, size - done);
            if (n <= 0) { perror("write"); exit(1); }
            done += n;
        }
        next_frame = (next_frame + part) % frames;
        count -= part;
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* How many answers have become whole by these bytes. */
static int take(struct peer *peer, const unsigned char *data, long size, double at, long total) {
    int count = 0;
    while (size > 0) {
        if (!peer->left) {
            while (peer->filled < HEAD && size) peer->head[peer->filled++] = *data++, size--;
            if (peer->filled < HEAD) break; /* no answer is shorter */
            uint32_t length;
            memcpy(&length, peer->head, 4);
            peer->left = 4 + (long)ntohl(length) - HEAD;
            failed += memcmp(peer->head + 8, SUCCESS, HEAD - 8) != 0;
        }
        long part = peer->left < size ? peer->left : size;
        data += part, size -= part, peer->left -= part;
        if (!peer->left) {
            peer->filled = 0;
            if (answered < total) took[answered] = at - peer->sent_at[peer->first % in_flight];
            peer->first++, peer->open--;
            answered++, count++;
        }
    }
    return count;
}

int main(int argc, char **argv) {
    if (argc != 6 && argc != 7) {
        fprintf(stderr, "usage: load PORT CONNECTIONS IN_FLIGHT TOTAL FRAME_FILE [RATE]\n");
        return 2;
    }
    int connections = atoi(argv[2]), poll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0), one = 1;
    in_flight = atoi(argv[3]);
    long total = atol(argv[4]);
    double rate = argc > 6 ? atof(argv[6]) : 0;
    read_frames(argv[5]);
    took = malloc(sizeof *took * total);
    struct peer *peers = calloc(connections, sizeof *peers);
    for (int i = 0; i < connections; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        peers[i].socket = socket(AF_INET, SOCK_STREAM, 0);
        peers[i].sent_at = malloc(sizeof(double) * in_flight);
        if (connect(peers[i].socket, (void *)&address, sizeof address)) { perror("connect"); return 1; }
        setsockopt(peers[i].socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        epoll_ctl(poll, EPOLL_CTL_ADD, peers[i].socket, &event);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    epoll_ctl(poll, EPOLL_CTL_ADD, timer, &event);
    static unsigned char buffer[1 << 20];
    double start = now();
    for (int i = 0; !rate && i < connections; i++) send_frames(&peers[i], in_flight, start);
    while (answered < total) {
        if (rate) {
            double at = now();
            for (int tried = 0, i = sent % connections; sent < total && tried < connections; ) {
                double due = start + sent / rate;
                if (due > at) {
                    struct itimerspec when = {.it_value = {(time_t)due, (long)((due - (time_t)due) * 1e9) + 1}};
                    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
                    break;
                }
                if (peers[i].open < in_flight) send_frames(&peers[i], 1, due), tried = 0;
                else tried++;
                i = (i + 1) % connections;
            }
        }
        struct epoll_event events[256];
        int ready = epoll_wait(poll, events, 256, 5000);
        if (ready <= 0) { fprintf(stderr, "no answer in 5 s\n"); return 1; }
        for (int k = 0; k < ready; k++) {
            if (events[k].data.u32 == UINT32_MAX) {
                uint64_t ignored;
                if (read(timer, &ignored, sizeof ignored) < 0) perror("timer");
                continue;
            }
            struct peer *peer = &peers[events[k].data.u32];
            ssize_t got = read(peer->socket, buffer, sizeof buffer);
            if (got <= 0) { fprintf(stderr, "the server closed a connection\n"); return 1; }
            received += got;
            double at = now();
            int count = take(peer, buffer, got, at, total);
            if (!rate && sent < total && count) send_frames(peer, count, at);
        }
    }
    double elapsed = now() - start;
    qsort(took, total, sizeof *took, by_size);
    printf("%.0f %ld %.0f %.0f %.0f %.0f\n", answered / elapsed, failed, received / elapsed, took[total / 2] * 1e6,
           took[total * 99 / 100] * 1e6, took[total - 1] * 1e6);
    return 0;
}
