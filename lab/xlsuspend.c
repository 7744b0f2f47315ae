/*
 * Suspends guests in libxl's order, on libxl's own libraries, to compare with: beside it libxl has
 * its event loop, which is left out here.
 *
 *   1. xc_hvm_param_get (PVH), write of control/shutdown, watch on it
 *   2. each event of that watch: read; until the guest has changed it (its acknowledgement)
 *   3. end of that watch, watch on @releaseDomain
 *   4. each event of that watch: xc_domain_getinfolist; until the guest has suspended
 *
 * Reads commands and answers each, times in microseconds:
 *
 *   suspend DOMID            "TOTAL ACKNOWLEDGED": from just before 1 until 4 has confirmed it, and
 *                            until 2 was done; the guest is resumed afterwards
 *   event DOMID PORT         "TOTAL 0": of libxl's order for a guest that offers this port, which is
 *                            bound before the time begins
 *   save DOMID ROUNDS MS     libxc's checkpoints into /dev/null, with MS between two rounds: a line
 *                            "SUSPEND PAUSE" for each, until it was confirmed and until it was
 *                            resumed; then "end". With XYLEM_MARK set, each pause begins and ends
 *                            with a getppid, for who counts system calls
 *
 *   cc -O2 -o xlsuspend xlsuspend.c -lxenctrl -lxenevtchn -lxenguest -lxenstore
 *
 * Facts from Xen 4.17: tools/libs/light/libxl_dom_suspend.c, libxl_domain.c, libxl_aoutils.c,
 * tools/include/xenguest.h.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <xenctrl.h>
#include <xenevtchn.h>
#include <xenguest.h>
#include <xenstore.h>
#include <xen/hvm/params.h>

#define LIMIT_MS 60000

static xc_interface *xch;
static struct xs_handle *xs;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static unsigned long now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000UL + now.tv_nsec / 1000;
}

/* Waits for the next event of a watch with this token. */
static void await_watch(const char *token)
{
    struct pollfd ready = { .fd = xs_fileno(xs), .events = POLLIN };
    char **event;
    int ours;

    for (;;) {
        while ((event = xs_check_watch(xs))) {
            ours = !strcmp(event[XS_WATCH_TOKEN], token);
            free(event);
            if (ours)
                return;
        }
        if (poll(&ready, 1, LIMIT_MS) != 1)
            die("no event of a watch");
    }
}

static int is_acknowledged(const char *path)
{
    unsigned int length;
    char *value = xs_read(xs, XBT_NULL, path, &length);
    int is_empty = !value || !*value;

    free(value);
    return is_empty;
}

static int has_suspended(uint32_t domid)
{
    xc_domaininfo_t info;

    if (xc_domain_getinfolist(xch, domid, 1, &info) != 1 || info.domain != domid)
        die("the domain is gone");
    if (!(info.flags & XEN_DOMINF_shutdown))
        return 0;
    if (((info.flags >> XEN_DOMINF_shutdownshift) & XEN_DOMINF_shutdownmask) != SHUTDOWN_suspend)
        die("the guest has stopped");
    return 1;
}

struct times {
    unsigned long begun, acknowledged, confirmed;
};

static void suspend(uint32_t domid, int is_pv, struct times *times)
{
    char path[64];
    uint64_t parameter;

    snprintf(path, sizeof(path), "/local/domain/%u/control/shutdown", domid);
    times->begun = now_us();
    if (!is_pv) {
        xc_hvm_param_get(xch, domid, HVM_PARAM_CALLBACK_IRQ, &parameter);
        xc_hvm_param_get(xch, domid, HVM_PARAM_ACPI_S_STATE, &parameter);
    }
    if (!xs_write(xs, XBT_NULL, path, "suspend", 7))
        die("control/shutdown");
    if (!xs_watch(xs, path, "control"))
        die("watch");
    do
        await_watch("control");
    while (!is_acknowledged(path));
    times->acknowledged = now_us();
    xs_unwatch(xs, path, "control");
    if (!xs_watch(xs, "@releaseDomain", "release"))
        die("watch");
    do
        await_watch("release");
    while (!has_suspended(domid));
    times->confirmed = now_us();
    xs_unwatch(xs, "@releaseDomain", "release");
}

static void suspend_by_event(uint32_t domid, int port, struct times *times)
{
    xenevtchn_handle *xce = xenevtchn_open(NULL, 0);
    struct pollfd ready = { .events = POLLIN };
    int lock, local, fired;

    if (!xce)
        die("event channels");
    local = xc_suspend_evtchn_init_exclusive(xch, xce, domid, port, &lock);
    if (local < 0)
        die("the guest's port");
    ready.fd = xenevtchn_fd(xce);
    times->begun = now_us();
    if (xenevtchn_notify(xce, local))
        die("notify");
    do {
        if (poll(&ready, 1, LIMIT_MS) != 1)
            die("no event");
        fired = xenevtchn_pending(xce);
        if (fired < 0 || xenevtchn_unmask(xce, fired))
            die("pending");
    } while (!has_suspended(domid));
    times->confirmed = now_us();
    times->acknowledged = times->begun;
    xc_suspend_evtchn_release(xch, xce, domid, local, &lock);
    xenevtchn_close(xce);
    /* libxl leaves it: the next suspend by the store would not be heard of. */
    xc_domain_subscribe_for_suspend(xch, domid, 0);
}

static void resume(uint32_t domid)
{
    if (xc_domain_resume(xch, domid, 1))
        die("resume");
    if (!xs_resume_domain(xs, domid))
        die("XS_RESUME");
}

static int is_pv(uint32_t domid)
{
    xc_domaininfo_t info;

    if (xc_domain_getinfolist(xch, domid, 1, &info) != 1 || info.domain != domid)
        die("no such domain");
    return !(info.flags & XEN_DOMINF_hvm_guest);
}

struct checkpoints {
    uint32_t domid;
    int is_pv;
    unsigned int rounds_left, interval_ms;
    struct times times;
};

static void mark(void)
{
    if (getenv("XYLEM_MARK"))
        getppid();
}

static int save_suspend(void *data)
{
    struct checkpoints *save = data;

    mark();
    suspend(save->domid, save->is_pv, &save->times);
    return 1;
}

static int save_postcopy(void *data)
{
    struct checkpoints *save = data;
    unsigned long resumed;

    if (xc_domain_resume(xch, save->domid, 1))
        die("resume");
    resumed = now_us();
    mark();
    if (!xs_resume_domain(xs, save->domid))
        die("XS_RESUME");
    printf("%lu %lu\n", save->times.confirmed - save->times.begun, resumed - save->times.begun);
    return 1;
}

static int save_checkpoint(void *data)
{
    struct checkpoints *save = data;

    if (!--save->rounds_left)
        return 0;
    usleep(save->interval_ms * 1000);
    return 1;
}

static int save_logdirty(uint32_t domid, unsigned int enable, void *data)
{
    (void)domid, (void)enable, (void)data;
    /* There is no device model. */
    return 0;
}

static int save_policy(struct precopy_stats stats, void *data)
{
    (void)data;
    /* As libxl's: a few rounds, or until little is left. */
    if (stats.iteration >= 5 || (stats.dirty_count >= 0 && stats.dirty_count < 50))
        return XGS_POLICY_STOP_AND_COPY;
    return XGS_POLICY_CONTINUE_PRECOPY;
}

static void checkpoints(uint32_t domid, unsigned int rounds, unsigned int interval_ms)
{
    struct checkpoints save = {
        .domid = domid, .is_pv = is_pv(domid), .rounds_left = rounds, .interval_ms = interval_ms,
    };
    struct save_callbacks callbacks = {
        .suspend = save_suspend,
        .precopy_policy = save_policy,
        .postcopy = save_postcopy,
        .checkpoint = save_checkpoint,
        .switch_qemu_logdirty = save_logdirty,
        .data = &save,
    };
    int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);

    if (sink < 0)
        die("/dev/null");
    /* It ends by itself when the last checkpoint was taken, which libxc counts as a failure. */
    xc_domain_save(xch, sink, domid, XCFLAGS_LIVE, &callbacks, XC_STREAM_REMUS, -1);
    close(sink);
    puts(save.rounds_left ? "failed" : "end");
}

int main(void)
{
    char line[64];
    unsigned int domid, port, rounds, interval_ms;
    struct times times;

    xch = xc_interface_open(NULL, NULL, 0);
    xs = xs_open(0);
    if (!xch || !xs)
        die("neither Xen nor the store may be used");
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof(line), stdin)) {
        if (sscanf(line, "suspend %u", &domid) == 1) {
            suspend(domid, is_pv(domid), &times);
            resume(domid);
            printf("%lu %lu\n", times.confirmed - times.begun, times.acknowledged - times.begun);
        } else if (sscanf(line, "event %u %u", &domid, &port) == 2) {
            suspend_by_event(domid, port, &times);
            resume(domid);
            printf("%lu 0\n", times.confirmed - times.begun);
        } else if (sscanf(line, "save %u %u %u", &domid, &rounds, &interval_ms) == 3) {
            checkpoints(domid, rounds, interval_ms);
        } else {
            fprintf(stderr, "xlsuspend: what is '%s'?\n", line);
            return 1;
        }
    }
    return 0;
}
