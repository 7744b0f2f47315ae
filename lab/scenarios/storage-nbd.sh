# lab-addition: nbd
# The storage suite on exports of a real NBD server (nbd-server, over loopback), each a VDI that the kernel is connected with.
. /lab/lib.sh
. /lab/storage.sh
modprobe -a ext4 || fail "no ext4"
modprobe nbd nbds_max=16 || fail "no network block devices"
mkdir /srv
{
    printf '%s\n' '[generic]' 'listenaddr = 127.0.0.1' 'allowlist = true'
    for name in one two three shown; do
        truncate -s 4M /srv/$name
        printf '%s\n' "[$name]" "exportname = /srv/$name"
    done
    echo 'readonly = true'
} >/tmp/nbd.conf

# The server, and a process of it for each connection.
servers() { pids_of '[n]bd-server'; }
find_again() {
    nbd-server -C /tmp/nbd.conf >>/results/nbd-server.log 2>&1 </dev/null || fail "nbd-server does not start"
    wait_for 'grep -q :2A39 /proc/net/tcp' 30 || fail "nbd-server does not listen"
}
lose() { kill -9 $(servers); }
find_again
start_xylemd

storage_one=s:one
storage_copy=s:two
storage_read=s:three
put() { dd if=/guest/disk.img "of=/srv/${1#*:}" conv=notrunc 2>/dev/null; }
enlarge() { truncate -s 8M "/srv/${1#*:}"; }
can() {
    case $1 in
        # All that is the server's. No program serves the exports on this side.
        create | snapshot | snapshot_while_written | grow | grow_while_written | fill_up | kill_driver | outlive_*) return 1 ;;
    esac
}

storage_suite nbd server=127.0.0.1
check "what the guest wrote is on the server" [ "$(mounted_text /srv/one loop)" = "written by a guest" ]

echo "== what the server says"
check "sr-create" xy sr-create s nbd server=127.0.0.1:10809
vdi_unikernel spoiler s:shown w
check "what is exported for reading is not written" refused_with 's:shown: .*for reading only' \
    xy create -q /tmp/spoiler.cfg
vdi_unikernel nobody s:nobody w
check "an export that is not there is named" refused_with 's:nobody: ' xy create -q /tmp/nobody.cfg
vdi_unikernel shown s:shown r
check "but read" xy create -q /tmp/shown.cfg
check "by the kernel, for reading" [ "$(cat /sys/block/nbd0/ro)" = 1 ]
check "destroy shown" xy destroy shown
check "what is the server's is refused in one line" refused_with 's:new: .*on their server' xy vdi-create s:new 4M
check "and so is a snapshot" refused_with 's:one: .*on their server' xy vdi-snapshot s:one new
check "a server that is none is told" refused_with 'other: 127.0.0.1:1: ' xy sr-create other nbd server=127.0.0.1:1

echo "== a server that is silent"
vdi_unikernel silent s:one w
check "create silent" xy create -q /tmp/silent.cfg
kill -STOP $(servers)
begun=$(now)
check "a read ends with an error" sh -c '! dd if=/dev/nbd0 of=/dev/null bs=4096 skip=1500 count=1'
echo "the read ended after $(seconds_since "$begun") s"
check "in bounded time" within 120 "$begun"
begun=$(now)
check "vdi-list says so" refused_with 's: .*no answer within' xy vdi-list s
check "in bounded time" within 120 "$begun"
check "destroy silent" xy destroy silent
kill -CONT $(servers)
check "with the server again" wait_for "xy vdi-list s" 60
check "it starts again" xy create -q /tmp/silent.cfg
kill_xylemd
check "the disk does not need it" dd if=/dev/nbd0 of=/dev/null bs=4096 count=1
start_xylemd
check "destroy silent" xy destroy silent
check "sr-forget" xy sr-forget s

check "no mark is left" [ -z "$(ls /run/xylem/nbd)" ]
check "no device is connected" sh -c '! ls /sys/block/nbd*/pid'
