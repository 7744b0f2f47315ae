# Shell functions for scenarios with two hosts, after lib.sh: . /lab/lib-pair.sh
#
# The scenario runs on host a. Names of the hosts: a and b on the link, where guests are (10.0.0.1, 10.0.0.2), steady-a
# and steady-b on a network that nothing disturbs (10.0.1.1, 10.0.1.2). All below go by the latter.

# on_b COMMAND...: runs a shell command on host b, through one connection that stays open.
on_b() { ssh -o ControlMaster=auto -o ControlPath=/run/on_b -o ControlPersist=yes -o LogLevel=ERROR steady-b "$@"; }

# order WORDS...: tells the lab something; prints its answer, or fails with it.
order() {
    lab_answer=$(
        flock 9
        echo "$*" >&8
        read -r lab_answer <&8
        echo "$lab_answer"
    ) 9>/run/orders.lock
    case $lab_answer in
        ok) ;;
        "ok "*) echo "${lab_answer#ok }" ;;
        *)
            echo "$*: ${lab_answer#error }" >&2
            return 1
            ;;
    esac
}

# link cut|restore|delay MILLISECONDS|throttle KILOBYTES_PER_SECOND|loss PERCENT [from a|from b]: from now on, in both
# directions or in one; what was said before stays so until `link restore`.
# link bytes: how many a and b have sent over it.
# link observe ADDRESS [MILLISECONDS]: asks a guest for a sign of life that often (20), by a way that is never cut.
# link observed: its longest silence in milliseconds, answers and questions since this was last asked.
link() { order link "$@"; }

# power_cut b: takes host b's power away. power_on b: switches it on again, with the disk that it had, and waits for it.
# The disk is /var/lib/xylem; all other files are those of the first boot.
power_cut() {
    order power cut "$1" || return 1
    rm -f /run/on_b
}
power_on() { order power on "$1" && wait_for_b; }

# wait_for_b: until it takes commands.
wait_for_b() { wait_for 'ssh -o ConnectTimeout=5 -o LogLevel=QUIET steady-b true' 180 || fail "host b does not come up"; }

# on_both COMMAND: runs a shell command on each host.
on_both() { sh -c "$1" && on_b "$1"; }

# serve_nbd NAME...: host a serves disks of that name, by NBD on all its addresses: each /srv/NAME, by default a copy of
# the guests' disk image. Other hosts' SRs go there, or connect_nbd.
serve_nbd() {
    mkdir -p /srv
    printf '%s\n' '[generic]' 'listenaddr = 0.0.0.0' 'allowlist = true' >/tmp/nbd.conf
    for lab_name in "$@"; do
        [ -e "/srv/$lab_name" ] || cp /guest/disk.img "/srv/$lab_name"
        printf '%s\n' "[$lab_name]" "exportname = /srv/$lab_name" >>/tmp/nbd.conf
    done
    nbd-server -C /tmp/nbd.conf >>/results/nbd-server.log 2>&1 </dev/null || fail "nbd-server does not start"
    wait_for 'grep -q :2A39 /proc/net/tcp' 30 || fail "nbd-server does not listen"
}

# connect_nbd NAME NUMBER [HOST]: one of those disks is /dev/nbdNUMBER on both hosts, through the network of HOST: steady-a
# by default, or a.
connect_nbd() {
    on_both "modprobe nbd nbds_max=16 && /usr/sbin/nbd-client -N $1 ${3:-steady-a} /dev/nbd$2 -block-size 512 >/dev/null"
}

# serve_nfs: host a serves the folder /srv by NFS, version 4, with an empty folder /vdis in it. The scenario has the addition nfs.
serve_nfs() {
    . /lab/storage.sh
    file_system /srv
    mkdir /srv/vdis
    lab_types='tcp tpi_cots_ord v inet tcp - -'
    on_both "printf '%s\n' '$lab_types' 'tcp6 tpi_cots_ord v inet6 tcp - -' >/etc/netconfig; echo 'nfs 2049/tcp' >/etc/services
        modprobe -a nfs nfsv4" || fail "no NFS"
    modprobe nfsd || fail "no NFS server"
    mkdir -p /var/lib/nfs/v4recovery
    touch /var/lib/nfs/etab /var/lib/nfs/rmtab
    echo '/srv 10.0.0.0/23(rw,fsid=0,no_root_squash,no_subtree_check,insecure)' >/etc/exports
    mount -t nfsd nfsd /proc/fs/nfsd || fail "no nfsd file system"
    exportfs -r || fail "nothing is exported"
    rpc.mountd -N 3 || fail "no mountd"
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    rpc.nfsd -N 3 2 || fail "no NFS server"
    # No client that it does not know has anything to claim.
    echo Y >/proc/fs/nfsd/v4_end_grace
}

# on HOST COMMAND: runs a shell command on a or b.
on() {
    case $1 in
        a) sh -c "$2" ;;
        b) on_b "$2" ;;
    esac
}

# other HOST
other() { case $1 in a) echo b ;; b) echo a ;; esac; }

# pair_console NAME: what a guest printed on a, then on b. xl gives a guest that arrives another name for a while, which its
# log keeps.
pair_console() { on_both "cat /var/log/xen/console/guest-$1.log /var/log/xen/console/guest-$1--*.log 2>/dev/null; true"; }

# goes_on_at HOST NAME KEYS...: a guest that is there prints its next line of each key, and none says that something failed.
goes_on_at() {
    lab_host=$1 lab_name=$2
    shift 2
    for lab_key in "$@"; do
        lab_count="cat /var/log/xen/console/guest-$lab_name.log /var/log/xen/console/guest-$lab_name--*.log 2>/dev/null | grep -c 'XYLEM-GUEST: $lab_key='"
        lab_lines=$(on "$lab_host" "$lab_count")
        wait_for "[ \$(on $lab_host \"$lab_count\") -gt $((lab_lines + 1)) ]" 120 || {
            echo "no more lines $lab_key="
            return 1
        }
    done
    pair_console "$lab_name" | grep '=failed' && return 1
    return 0
}

# move_begins NAME: what is measured of a move begins here.
move_begins() {
    lab_guest=$1
    pair_console "$1" | grep 'XYLEM-GUEST: gap=' | sort >/tmp/gaps.before
    lab_bytes=$(link bytes)
    link observed >/dev/null
    lab_begun=$(now)
}

# move_ended WHAT [KEY=VALUE...]: prints the row. total_s is the time since move_begins; silence_ms the longest that a bystander
# on the network saw; gap_s the longest that the guest saw on its own clock, which may stand still meanwhile.
move_ended() {
    lab_total=$(seconds_since "$lab_begun")
    # What it was silent for at last is known once it speaks again.
    lab_what=$1
    shift
    sleep 5
    # shellcheck disable=SC2046 # words
    set -- "$*" $(link observed) $lab_bytes $(link bytes)
    pair_console "$lab_guest" | grep 'XYLEM-GUEST: gap=' | sort >/tmp/gaps.after
    lab_gap=$(grep -vxFf /tmp/gaps.before /tmp/gaps.after | sed 's/.*gap=//' | sort -n | tail -1)
    echo "row: what=$lab_what total_s=$lab_total silence_ms=$2 gap_s=${lab_gap:-0} sent_kb=$((($7 + $8 - $5 - $6) / 1000)) answers=$3/$4${1:+ $1}"
}

# mover_cfg NAME KIND DISK [LINES...]: a guest for both hosts that writes to its disk, verifies its memory, looks at its clock and
# answers at 10.0.0.5; in xl's long words. DISK as in a configuration file.
mover_cfg() {
    lab_name=$1 lab_kind=$2 lab_disk=$3
    shift 3
    lab_kernel=/guest/vmlinux
    [ -e $lab_kernel ] || lab_kernel=/guest/vmlinuz
    {
        echo "name = '$lab_name'"
        echo "type = '$lab_kind'"
        echo "kernel = '$lab_kernel'"
        echo "ramdisk = '/guest/initramfs'"
        echo "memory = ${lab_memory:-128}"
        echo "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.5 xylem.io=1 xylem.mem=${lab_mem:-8} xylem.gap=1 xylem.tick=1'"
        echo "disk = ['$lab_disk']"
        echo "vif = ['bridge=xenbr0,mac=00:16:3e:00:00:05']"
        for lab_line in "$@"; do echo "$lab_line"; done
    } >"/tmp/$lab_name.cfg"
}

# The port can be opened once: a shell that this one starts has it already.
lab_port=$(grep -l '^xylem.orders$' /sys/class/virtio-ports/*/name | cut -d / -f 5)
[ -e /proc/self/fd/8 ] || exec 8<>"/dev/$lab_port"
wait_for_b
