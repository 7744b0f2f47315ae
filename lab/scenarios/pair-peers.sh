# Who may move VMs to a host by TLS, and who may not: a stranger, a host with another key than it had, one that was removed,
# also while it sends.
. /lab/lib.sh
. /lab/lib-pair.sh
lab_memory=128 lab_mem=8

# refused WORDS COMMAND...: it fails, and says so.
refused() {
    lab_words=$1
    shift
    "$@" >/tmp/refused 2>&1 && return 1
    cat /tmp/refused
    grep -q "$lab_words" /tmp/refused
}

# here: nothing has happened to the guest.
here() { [ "$(xy domid mover)" -gt 0 ] && goes_on_at a mover tick; }

check "xylemd on a" start_xylemd --peer-listen 0.0.0.0
check "xylemd on b, without a port" on b '. /lab/lib.sh && start_xylemd'
serve_nbd disk
check "block devices for NBD" on_both 'modprobe nbd nbds_max=16'
check "the SR" on_both 'xy sr-create s nbd server=10.0.1.1'
mover_cfg mover pvh s:disk,,xvda,w
check "create" xy create -q /tmp/mover.cfg || exit
check "it is up" console_wait mover 'XYLEM-GUEST: mem=1' 600 || exit
key_a=$(xy peer key 2>/dev/null) key_b=$(on b 'xy peer key 2>/dev/null')
check "no port is open on b" on b '! grep -q ":1F43 .* 0A " /proc/net/tcp /proc/net/tcp6'
check "nobody is called b" refused "there is no peer 'b'" xy migrate --tls mover b
check "b is made known on a" xy peer add b b "$key_b"
check "nobody listens on b" refused "does xylemd listen there" xy migrate --tls mover b
on b 'kill $(pidof xylemd); sleep 1; . /lab/lib.sh && start_xylemd --peer-listen 0.0.0.0'
check "b does not know a" refused "does not let this one in" xy migrate mover b
check "b's log says who it was" on b "grep -q '$key_a, which no peer has' /results/xylemd.log"
check "it goes on" here
check "a is made known on b" on b "xy peer add a a $key_a"
check "they know each other" xy peer check b
# b is installed anew.
on b 'kill $(pidof xylemd); sleep 1; rm /var/lib/xylem/peer-key; . /lab/lib.sh && start_xylemd --peer-listen 0.0.0.0'
check "b has another key" refused "is not b as it was made known" xy migrate mover b
check "it goes on" here
xy peer remove b
check "b's new key is made known" xy peer add b b "$(on b 'xy peer key')"
check "they know each other again" xy peer check b
# The move takes minutes.
link throttle 200
xy migrate mover b >/tmp/moved 2>&1 &
moving=$!
sleep 15
xy explain mover | tee /results/explain.txt
check "its progress is told" grep -q 'round 1, .* MiB/s.* pause of .* ms expected' /results/explain.txt
check "a is removed on b meanwhile" on b 'xy peer remove a'
check "the move ends at once" wait_for "! kill -0 $moving 2>/dev/null" 10
cat /tmp/moved
link restore
check "it goes on" here
check "nothing of it is on b" on b '[ "$(xy list | wc -l)" -eq 2 ]'
# It is cancelled by Ctrl-C, and the guest runs on.
on b "xy peer add a a $key_a"
link throttle 200
xy migrate mover b >/tmp/moved 2>&1 &
moving=$!
sleep 10
kill -INT "$moving"
check "it goes on after Ctrl-C" wait_for 'xy explain mover | grep -q "nothing is under way"' 5
link restore
check "it goes on" here
check "it moves in the end" xy migrate mover b
check "it goes on, on b" goes_on_at b mover tick mem
check "shutdown" on b "xy shutdown -w mover"
