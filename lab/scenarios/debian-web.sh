# A Debian host is opened to remote clients: who gets in, how far, what a kill of xylem-web changes, and what is left after its removal.
. /lab/lib-debian.sh

# ask ROLE COMMAND...: xy for the client of that role, who is elsewhere as far as xy knows.
ask() {
    lab_role=$1
    shift
    XYLEM_HOST=https://localhost:8443 XYLEM_CA=/var/lib/xylem-web/certificate.pem XYLEM_TOKEN=$(cat /tmp/$lab_role) xy "$@"
}
# has PATH TEXT: whether an answer has it, by a second xylem-web that needs no TLS.
has() { bash -c "exec 3<>/dev/tcp/127.0.0.1/8444 && printf 'GET $1 HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3" | grep -q "$2"; }
web_pid() { systemctl show --property MainPID --value xylem-web; }

unikernel_cfg web
check "apt installs our packages" apt-get install -y /lab/packages/*.deb
check "xylem-web is off" sh -c '! systemctl is-active xylem-web && ! systemctl is-enabled xylem-web'
check "a VM runs" xy create -q /tmp/web.cfg
for role in viewer operator admin; do
    check "a client $role" sh -c "xylem-web client add-token the-$role --role $role >/tmp/$role"
done
check "who is let in is for xylem-web to read alone" test "$(stat -c '%U %G %a' /etc/xylem-web/clients)" = "root xylem-web 640"
check "it starts" systemctl start xylem-web
check "as a user of its own" test "$(ps -o user= -p "$(web_pid)")" = xylem-web
check "for this host alone" sh -c "ss -Hltn sport = :8443 | awk '{ print \$4 }' | grep -qx 127.0.0.1:8443"
check "its key is its own" test "$(stat -c '%U %a' /var/lib/xylem-web/key.pem)" = "xylem-web 600"
echo "-- as a viewer of xylemd"
check "a viewer looks" ask viewer list web
check "so does an admin" ask admin list web
check "who may do no more than xylem-web" refused_with 'needs the role operator' ask admin pause web
xylem-web --listen 127.0.0.1:8444 --clients /etc/xylem-web/clients &
second=$!
check "the page is served" wait_for 'has / "<title>Xylem"' 20
check "nobody else sees a VM" has /v1/vms '401 Unauthorized'
kill $second
echo "-- as an operator of xylemd"
gpasswd -a xylem-web xylem-operator
check "it is restarted" systemctl restart xylem-web
check "an operator pauses the VM" ask operator pause web
check "and lets it go on" ask operator unpause web
check "a viewer does not" refused_with 'this needs the role operator, and yours is viewer' ask viewer pause web
check "nobody creates one" refused_with 'needs the role admin' ask admin create -q /tmp/web.cfg
echo "-- as an admin of xylemd"
gpasswd -a xylem-web xylem-admin
check "it is restarted" systemctl restart xylem-web
unikernel_cfg far
check "an admin creates a VM" ask admin create -q /tmp/far.cfg
check "the store, by an admin" test "$(ask admin store read "/local/domain/$(xy domid far)/name")" = far
check "a viewer does not see it" refused_with 'needs the role admin' ask viewer store ls /
check "what a VM uses" eval 'ask viewer top -b -i 1 | grep -q far'
check "what is not as it should be is what the host says" test "$(ask viewer doctor)" = "$(xy doctor)"
check "a report" ask admin bugreport /tmp/report.tar
check "with logs in it" sh -c "tar tf /tmp/report.tar | grep -q journal"
tar tf /tmp/report.tar | head -n 30
check "a VM is saved on the host" ask admin save far /var/tmp/far.saved
check "and restored" ask admin restore /var/tmp/far.saved
check "and destroyed" ask admin destroy far
echo "-- trouble"
before=$(xy domid web)
killed=$(web_pid)
check "xylem-web is killed" kill -9 "$killed"
check "systemd starts it again" wait_for "systemctl is-active xylem-web && [ \"\$(systemctl show --property MainPID --value xylem-web)\" != $killed ]" 60
check "a viewer looks again" wait_for "XYLEM_HOST=https://localhost:8443 XYLEM_CA=/var/lib/xylem-web/certificate.pem XYLEM_TOKEN=$(cat /tmp/viewer) xy list web" 60
check "xylemd is restarted" systemctl restart xylemd
check "a viewer looks once more" wait_for "XYLEM_HOST=https://localhost:8443 XYLEM_CA=/var/lib/xylem-web/certificate.pem XYLEM_TOKEN=$(cat /tmp/viewer) xy list web" 60
before_upgrade=$(web_pid)
check "it is upgraded" apt-get install -y --reinstall /lab/packages/xylem-web_*.deb
check "and serves" wait_for "XYLEM_HOST=https://localhost:8443 XYLEM_CA=/var/lib/xylem-web/certificate.pem XYLEM_TOKEN=$(cat /tmp/viewer) xy list web" 60
check "by another process" test "$(web_pid)" != "$before_upgrade"
echo "-- a flood: 20 clients that ask without end, while VMs are created here"
# round NAME: creates and destroys one five times; prints how long that took, in hundredths of a second.
round() {
    lab_from=$(date +%s%2N)
    for lab_time in 1 2 3 4 5; do xy create -q /tmp/far.cfg && xy destroy far || return 1; done
    echo "$1: $(($(date +%s%2N) - lab_from))"
}
check "without it" round quiet
floods=
for client in $(seq 20); do
    while :; do ask viewer list; done >/dev/null 2>&1 &
    floods="$floods $!"
done
sleep 2
check "with it" round flooded
kill $floods
check "the VM has noticed nothing" test "$(xy domid web)" = "$before"
check "a client is put out" xylem-web client remove the-operator
check "at once" wait_for "! XYLEM_HOST=https://localhost:8443 XYLEM_CA=/var/lib/xylem-web/certificate.pem XYLEM_TOKEN=$(cat /tmp/operator) xy list web" 10
check "the log is whole" xylem-web check-log /var/log/xylem-web/log
grep -c . /var/log/xylem-web/log
check "the journal has it, too" sh -c 'journalctl -u xylem-web --no-pager | grep -q "the-operator from 127.0.0.1: pause"'
systemd-analyze security --no-pager xylem-web | tail -n 1
check "nothing of it failed" test "$(systemctl --failed --quiet | wc -l)" = 0
check "it is purged" apt-get purge -y xylem-web
check "it has ended" sh -c '! pidof xylem-web'
check "nothing is left" sh -c '! ls -d /etc/xylem-web /var/lib/xylem-web /var/log/xylem-web 2>/dev/null'
check "the VM runs on" xy list web
check "it ends" xy destroy web
