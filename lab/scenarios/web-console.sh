# lab-addition: hvm
# Consoles and screens for clients elsewhere: `xy --host` attaches by xylem-web, which runs as a user without rights, to a console of
# xenconsoled, to a channel of QEMU, and nothing of it is left.
. /lab/lib.sh

# relays: of the daemon, by the name of their threads.
relays() { cat /proc/"$xylemd_pid"/task/*/comm | grep -c '^relay$'; }
# attach INPUT OUTPUT ARGUMENTS...: a console, in the background, that shows into OUTPUT and takes what is written to descriptor 5.
attach() {
    rm -f "$1"
    mkfifo "$1"
    lab_input=$1
    lab_output_file=$2
    shift 2
    xy --host "$url" console "$@" <"$lab_input" >"$lab_output_file" 2>/tmp/attach.err &
    attached=$!
    exec 5>"$lab_input"
}
# One that has ended is there until this shell asks for its status.
ended() { [ ! -d "/proc/$attached" ] || grep -q '^State:.Z' "/proc/$attached/status"; }
detach() {
    printf '\035' >&5
    exec 5>&-
    wait_for ended 20
}

printf '%s\n' xylem:x:64001:web xylem-admin:x:64003:web >>/etc/group
echo "web:x:1240:1230::/tmp:/bin/sh" >>/etc/passwd
start_xylemd
host_state >/results/state.before

su web -c "exec xylem-web --try --listen 127.0.0.1:8443" >/tmp/web.out 2>/results/xylem-web.log </dev/null &
web=$!
check "xylem-web serves" wait_for 'grep -q token= /tmp/web.out' 30 || cat /results/xylem-web.log
url=$(sed 's,/#token=.*,,' /tmp/web.out)
XYLEM_TOKEN=$(sed 's,.*#token=,,' /tmp/web.out)
export XYLEM_TOKEN
check "as a user" grep -q '^Uid:.1240' "/proc/$(pidof xylem-web)/status"
check "it has no rights" grep -q '^CapEff:.0000000000000000' "/proc/$(pidof xylem-web)/status"
check "it answers" xy --host "$url" list

echo "== a console of xenconsoled"
linux_cfg one "type = 'pv'" "memory = 160" \
    "extra = 'console=hvc0 quiet $FAST_BOOT xylem.channel=1'" \
    "channel = [ 'connection=pty,name=org.xylem.first' ]" "vfb = [ 'vnc=1' ]"
check "create" xy create -q /tmp/one.cfg || cat /var/log/xen/qemu-dm-one.log
attach /tmp/in /tmp/out one
check "what the guest prints comes" wait_for 'grep -q XYLEM-GUEST /tmp/out' 180
check "one relay" [ "$(relays)" = 1 ]
echo "hello-from-afar" >&5
check "the guest's terminal answers" wait_for 'grep -q hello-from-afar /tmp/out' 30
check "the escape ends it" detach
check "and the relay" wait_for '[ "$(relays)" = 0 ]' 10
check "the guest runs on" xy domid one

echo "== a channel"
check "the guest has opened it" wait_for 'grep -q channel=open "$(console_log one)"' 180
attach /tmp/in /tmp/out -t pv -n 1 one
echo "hello" >&5
check "the guest hears it and answers" wait_for 'grep -q heard=hello /tmp/out' 30
check "the escape ends it" detach

echo "== a screen"
curl_screen() {
    (
        printf 'GET /v1/vms/one/screen HTTP/1.1\r\nHost: 127.0.0.1:8443\r\nAuthorization: Bearer %s\r\n' "$XYLEM_TOKEN"
        printf 'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n'
        sleep 3
    ) | nc 127.0.0.1 8443 | head -c 4096
}
curl_screen >/tmp/screen
check "it is a WebSocket" grep -q '101 Switching Protocols' /tmp/screen
check "that speaks RFB" grep -aq 'RFB 003' /tmp/screen
check "and nothing of it is left" wait_for '[ "$(relays)" = 0 ]' 10

echo "== whoever ends"
attach /tmp/in /tmp/out one
check "attached" wait_for '[ "$(relays)" = 1 ]' 10
kill_xylemd
check "a console ends with the daemon" wait_for ended 10
exec 5>&-
start_xylemd
check "xylem-web finds the next one" wait_for 'xy --host "$url" list one' 30
attach /tmp/in /tmp/out one
check "attached again" wait_for '[ "$(relays)" = 1 ]' 10
check "destroy" xy destroy one
check "a console ends with its domain" wait_for ended 10
exec 5>&-
check "no relay is left" wait_for '[ "$(relays)" = 0 ]' 10
check "of one that is not there" refused_with 'one: no such domain' xy --host "$url" console one
kill "$web"
check "nothing is left" same_state /results/state.before
