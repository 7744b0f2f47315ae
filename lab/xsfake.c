/*
 * A fake Xen for the packaged store daemons (LD_PRELOAD), so that they run on a plain Linux
 * machine and serve fake domains over real ring pages. `cargo xtask` compiles it into its cache.
 *
 * It replaces the few entry points of libxenevtchn, libxengnttab, libxenctrl and libxenmanage that
 * xenstored and oxenstored use. Domains are files in $XSFAKE_DIR (default ./xsfake.d):
 *
 *   ring.<domid>   4096 bytes, mapped shared: the domain's ring page
 *   dom.<domid>    exists = the domain exists; its first byte says how: 'r' running, 's' shut down,
 *                  'd' dying; ":<unique id>" may follow
 *   evtchn         the server's datagram socket: a guest sends its domid as a native u32 to kick the
 *                  server; 0xffffffff is VIRQ_DOM_EXC, after which the server looks at dom.* again
 *   evt.<domid>    a datagram socket the guest may bind; one byte arrives for each notification
 *   ring.0, port.0 stand for /proc/xen/xsd_kva and /proc/xen/xsd_port; made at the start
 *
 * The local port of domain N is 1000+N and VIRQ_DOM_EXC is port 1. Ports and ids survive exec(), so
 * live update works. Everything below /run/xenstored, where oxenstored has its socket compiled in,
 * is in $XSFAKE_DIR instead, and setrlimit() never fails.
 *
 *   cc -O2 -shared -fPIC -o libxsfake.so xsfake.c -ldl        (needs libxen-dev)
 *   XSFAKE_DIR=d XENSTORED_RUNDIR=d LD_PRELOAD=$PWD/libxsfake.so xenstored -N
 *   XSFAKE_DIR=d LD_PRELOAD=$PWD/libxsfake.so oxenstored --no-fork --config-file FILE
 *       where FILE has xenstored-kva = d/ring.0 and xenstored-port = d/port.0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <xenctrl.h>

#define VIRQ_PORT 1
#define PORT_BASE 1000

static const char *fdir(void)
{
    const char *d = getenv("XSFAKE_DIR");
    return d ? d : "xsfake.d";
}

static void fpath(char *buf, size_t n, const char *what, int id)
{
    if (id >= 0)
        snprintf(buf, n, "%s/%s.%d", fdir(), what, id);
    else
        snprintf(buf, n, "%s/%s", fdir(), what);
}

/* state: 0 = no such domain, else 'r', 's', 'd' */
static int dom_state(unsigned int domid, uint64_t *uid)
{
    char p[256], b[32] = "";
    int fd, n;

    if (uid)
        *uid = 1000000 + domid;
    fpath(p, sizeof(p), "dom", domid);
    fd = open(p, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return domid == 0 ? 'r' : 0;
    n = read(fd, b, sizeof(b) - 1);
    close(fd);
    if (n > 2 && b[1] == ':' && uid)
        *uid = strtoull(b + 2, NULL, 10);
    return n > 0 ? b[0] : 'r';
}

__attribute__((constructor)) static void xsfake_init(void)
{
    char p[256];
    int fd;

    mkdir(fdir(), 0755);
    fpath(p, sizeof(p), "ring", 0);
    fd = open(p, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        if (ftruncate(fd, 4096)) {}
        close(fd);
    }
    fpath(p, sizeof(p), "port", 0);
    fd = open(p, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0) {
        if (write(fd, "1", 1)) {}
        close(fd);
    }
}

/* ---- libc: dom0's two files and /run/xenstored are elsewhere, setrlimit() is tolerated ---- */
static const char *redirect(const char *path, char *buf, size_t n)
{
    static const char *const dirs[] = { "/run/xenstored", "/var/run/xenstored" };
    size_t l = strlen(path);
    unsigned int i;

    if (l > 7 && !strcmp(path + l - 7, "xsd_kva")) {
        fpath(buf, n, "ring", 0);
        return buf;
    }
    if (l > 8 && !strcmp(path + l - 8, "xsd_port")) {
        fpath(buf, n, "port", 0);
        return buf;
    }
    for (i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        size_t d = strlen(dirs[i]);

        if (!strncmp(path, dirs[i], d) && (!path[d] || path[d] == '/')) {
            snprintf(buf, n, "%s%s", fdir(), path + d);
            return buf;
        }
    }
    return path;
}

#define OPENFN(name)                                                        \
int name(const char *path, int flags, ...)                                  \
{                                                                           \
    static int (*real)(const char *, int, ...);                             \
    char buf[256];                                                          \
    mode_t mode = 0;                                                        \
    if (!real)                                                              \
        real = dlsym(RTLD_NEXT, #name);                                     \
    if (flags & (O_CREAT | O_TMPFILE)) {                                    \
        va_list ap;                                                         \
        va_start(ap, flags);                                                \
        mode = va_arg(ap, mode_t);                                          \
        va_end(ap);                                                         \
    }                                                                       \
    return real(redirect(path, buf, sizeof(buf)), flags, mode);             \
}
OPENFN(open)
OPENFN(open64)

int unlink(const char *path)
{
    static int (*real)(const char *);
    char buf[256];

    if (!real)
        real = dlsym(RTLD_NEXT, "unlink");
    return real(redirect(path, buf, sizeof(buf)));
}

#define MODEFN(name)                                                        \
int name(const char *path, mode_t mode)                                     \
{                                                                           \
    static int (*real)(const char *, mode_t);                               \
    char buf[256];                                                          \
    if (!real)                                                              \
        real = dlsym(RTLD_NEXT, #name);                                     \
    return real(redirect(path, buf, sizeof(buf)), mode);                    \
}
MODEFN(chmod)
MODEFN(mkdir)

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    static int (*real)(int, const struct sockaddr *, socklen_t);
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    char path[sizeof(a.sun_path) + 1] = "", buf[256];
    const char *to;

    if (!real)
        real = dlsym(RTLD_NEXT, "bind");
    if (address->sa_family != AF_UNIX || length <= offsetof(struct sockaddr_un, sun_path))
        return real(fd, address, length);
    memcpy(path, ((const struct sockaddr_un *)address)->sun_path,
           length - offsetof(struct sockaddr_un, sun_path));
    to = redirect(path, buf, sizeof(buf));
    if (to == path)
        return real(fd, address, length);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", to);
    return real(fd, (void *)&a, sizeof(a));
}

int setrlimit(__rlimit_resource_t r, const struct rlimit *l)
{
    static int (*real)(__rlimit_resource_t, const struct rlimit *);
    if (!real)
        real = dlsym(RTLD_NEXT, "setrlimit");
    real(r, l);
    return 0;
}

/* ---- libxenevtchn ---- */
struct fake_evtchn { int fd; };
typedef struct fake_evtchn FE;

void *xenevtchn_fdopen(void *logger, int fd, unsigned int flags)
{
    FE *h = calloc(1, sizeof(*h));
    h->fd = fd;
    return h;
}

void *xenevtchn_open(void *logger, unsigned int flags)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    fpath(a.sun_path, sizeof(a.sun_path), "evtchn", -1);
    unlink(a.sun_path);
    if (bind(fd, (void *)&a, sizeof(a)))
        return NULL;
    return xenevtchn_fdopen(NULL, fd, 0);
}

int xenevtchn_close(FE *h) { close(h->fd); free(h); return 0; }
int xenevtchn_fd(FE *h) { return h->fd; }
int xenevtchn_unmask(FE *h, unsigned int p) { return 0; }
int xenevtchn_unbind(FE *h, unsigned int p) { return 0; }
int xenevtchn_bind_virq(FE *h, unsigned int v) { return VIRQ_PORT; }

int xenevtchn_bind_interdomain(FE *h, uint32_t domid, unsigned int remote)
{
    return PORT_BASE + domid;
}

int xenevtchn_notify(FE *h, unsigned int port)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int before = errno;

    if (port < PORT_BASE)
        return 0;
    fpath(a.sun_path, sizeof(a.sun_path), "evt", port - PORT_BASE);
    sendto(h->fd, "!", 1, MSG_DONTWAIT, (void *)&a, sizeof(a));
    /* A real one succeeds whether or not anybody listens. */
    errno = before;
    return 0;
}

int xenevtchn_pending(FE *h)
{
    uint32_t v = 0;

    if (recv(h->fd, &v, sizeof(v), 0) < 0)
        return -1;
    return v == 0xffffffffu ? VIRQ_PORT : PORT_BASE + (int)v;
}

/* ---- libxengnttab ---- */
void *xengnttab_open(void *l, unsigned int f) { return malloc(1); }
int xengnttab_close(void *h) { return 0; }
int xengnttab_set_max_grants(void *h, uint32_t n) { return 0; }

static void *map_ring(unsigned int domid)
{
    char p[256];
    void *m;
    int fd;

    fpath(p, sizeof(p), "ring", domid);
    fd = open(p, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        errno = EINVAL;
        return NULL;
    }
    m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return m == MAP_FAILED ? NULL : m;
}

void *xengnttab_map_grant_ref(void *h, uint32_t domid, uint32_t ref, int prot)
{
    return map_ring(domid);
}
int xengnttab_unmap(void *h, void *addr, uint32_t n)
{
    return munmap(addr, 4096);
}

/* ---- libxenctrl ---- */
xc_interface *xc_interface_open(xentoollog_logger *a, xentoollog_logger *b,
                                unsigned int f)
{
    return malloc(1);
}
int xc_interface_close(xc_interface *x) { return 0; }
void *xc_map_foreign_range(xc_interface *x, uint32_t domid, int sz, int prot,
                           unsigned long mfn)
{
    return map_ring(domid);
}

int xc_domain_getinfo(xc_interface *x, uint32_t first, unsigned int max,
                      xc_dominfo_t *info)
{
    unsigned int n = 0, d;

    for (d = first; d < 32752 && n < max; d++) {
        int s = dom_state(d, NULL);
        if (!s) {
            if (max == 1)
                break;
            continue;
        }
        memset(&info[n], 0, sizeof(info[n]));
        info[n].domid = d;
        info[n].shutdown = s == 's';
        info[n].dying = s == 'd';
        info[n].running = s == 'r';
        n++;
    }
    return n;
}

int xc_domain_getinfolist(xc_interface *x, uint32_t first, unsigned int max,
                          xc_domaininfo_t *info)
{
    unsigned int n = 0, d;

    for (d = first; d < 32752 && n < max; d++) {
        int s = dom_state(d, NULL);
        if (!s) {
            if (max == 1)
                break;
            continue;
        }
        memset(&info[n], 0, sizeof(info[n]));
        info[n].domain = d;
        info[n].flags = s == 's' ? XEN_DOMINF_shutdown :
                        s == 'd' ? XEN_DOMINF_dying : XEN_DOMINF_running;
        n++;
    }
    return n;
}

int xc_domain_getinfo_single(xc_interface *x, uint32_t domid, xc_domaininfo_t *info)
{
    xc_domaininfo_t tmp;

    if (xc_domain_getinfolist(x, domid, 1, info ? info : &tmp) == 1)
        return 0;
    errno = ESRCH;
    return -1;
}

/* ---- libxenmanage (Xen 4.20 and later) ---- */
static int polled[65536];           /* last state reported + 1 */
void *xenmanage_open(void *l, unsigned int f) { return malloc(1); }
int xenmanage_close(void *h) { return 0; }

static void fill(unsigned int domid, int s, unsigned int *state,
                 unsigned int *caps, uint64_t *unique_id)
{
    uint64_t u;

    dom_state(domid, &u);
    if (state)                       /* bit 0 exist, 1 shutdown, 2 dying, 3 dead */
        *state = !s ? 0 : s == 's' ? 3 : s == 'd' ? 15 : 1;
    if (caps)
        *caps = domid == 0 ? 7 : 0;  /* control | hardware | xenstore */
    if (unique_id)
        *unique_id = s ? u : 0;      /* 0: that domain is gone */
}

int xenmanage_get_domain_info(void *h, unsigned int domid, unsigned int *state,
                              unsigned int *caps, uint64_t *unique_id)
{
    int s = dom_state(domid, NULL);

    if (!s) {
        errno = ESRCH;
        return -1;
    }
    if (!polled[domid])
        polled[domid] = s + 1;
    fill(domid, s, state, caps, unique_id);
    return 0;
}

int xenmanage_poll_changed_domain(void *h, unsigned int *domid,
                                  unsigned int *state, unsigned int *caps,
                                  uint64_t *unique_id)
{
    static int primed;
    unsigned int d, max = primed ? 32752 : 1;

    /* First poll reports only dom0, as after boot; guests come by INTRODUCE. */
    for (d = 0; d < max; d++) {
        int s = dom_state(d, NULL);
        if ((s ? s + 1 : 0) == polled[d])
            continue;
        polled[d] = s ? s + 1 : 0;
        *domid = d;
        fill(d, s, state, caps, unique_id);
        return 0;
    }
    primed = 1;
    errno = ENOENT;
    return -1;
}
