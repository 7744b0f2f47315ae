# A fresh Debian host gets our packages: its first VM, our store after a reboot, VMs that come back with the host, an upgrade,
# and a removal that leaves nothing. Without a network, as apt has it here.
#
# xylem-xenstored's way in and out: boot 1 has Debian's store, boot 2 ours, boot 3 the one that the operator names, boot 4
# Debian's again.
. /lab/lib-debian.sh

# installed PACKAGE: whether dpkg has it.
installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

# files: all that packages, and what they start, may leave. /var/lib/xen is where Debian's xendomains makes a folder.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/tmp -o -path /results -o -path $state \
        -o -path /var/lib/xen -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd \) -prune \
        -o -print | sort
}

# hello_number N NAME: whether our guest kernel comes up for that often since the first boot.
hello_number() { wait_for "[ \$(grep -c 'XYLEM-UNIKERNEL: .*mode=' $(console_log "$2")) -ge $1 ]" 600; }

oxenstored=$(echo /usr/lib/xen-4.*/bin/oxenstored)

fresh() {
    check "boot 1 is well" well
    check "Debian's store serves" serves "$oxenstored"
    files >$state/files.before
    unikernel_cfg web "vif = ['bridge=xenbr0']" "on_host_shutdown = 'shutdown'"
    cp /tmp/web.cfg /root/web.cfg

    # The three commands.
    check "apt installs our packages" apt-get install -y /lab/packages/*.deb
    echo "$lab_output" | sed -n '/^The store/,/^C xenstored/p'
    check "a VM is defined, to start with the host" xy define /root/web.cfg --autostart
    check "and started" xy start web

    check "web says hello" hello_number 1 web
    check "its vif is in the bridge" sh -c 'ls /sys/class/net/xenbr0/brif | grep -q ^vif'
    check "xy and xl list it" sh -c 'xy list web && xl list web'
    check "xylemd runs under systemd" systemctl is-active xylemd
    check "it starts with the host" systemctl is-enabled xylemd
    check "whoever is in no group of Xylem is refused" refused_with 'members of the group xylem' runuser -u nobody -- xy list
    gpasswd -a nobody xylem
    check "a member of xylem looks" runuser -u nobody -- xy list web
    check "and changes nothing" refused_with 'needs the role operator' runuser -u nobody -- xy pause web
    gpasswd -d nobody xylem
    check "Debian's store still serves" serves "$oxenstored"
    check "Xen's scripts may be run again" systemctl restart xen
    check "without another store" serves "$oxenstored"

    # Another one is xl's.
    unikernel_cfg classic
    mkdir -p /etc/xen/auto
    cp /tmp/classic.cfg /etc/xen/auto/classic.cfg
    reboot_host
}

ours() {
    check "boot 2 is well" well
    check "our store serves" serves /usr/sbin/xylem-xenstored
    check "it is systemd's" systemctl is-active xenstored
    check "it is not root" sh -c "ps -o user= -p $(store_pid) | grep -qx xenstore"
    check "web was shut down with the host, not killed" sh -c \
        'journalctl -b -1 -u xylemd --no-pager | grep "web: stopping -> down"'
    check "the VM with --autostart runs" wait_for 'runs web' 300
    check "it says hello again" hello_number 2 web
    check "the VM of /etc/xen/auto runs" wait_for 'runs classic' 300
    xy list
    systemctl --no-pager status xen xenstored xylemd | grep -E '^.? *(Loaded|Active|Drop-In|.*\.service -)'
    for unit in xenstored xylemd xylem-host-shutdown; do
        systemd-analyze security --no-pager $unit >/results/security-$unit.txt
        tail -n 1 /results/security-$unit.txt
    done

    check "the store is killed" kill -9 "$(store_pid)"
    check "systemd starts it again" wait_for 'xenstore-read /local/domain/0/name' 120
    check "once" test "$(restart_count xenstored)" = 1
    check "with all guests" sh -c 'xl list web && xl list classic && xy list web'
    # xenconsoled is started anew then.
    unikernel_cfg later "vif = ['bridge=xenbr0']"
    check "a VM is made" xy create -q /tmp/later.cfg
    check "it has a console" console_wait later 'vif 0 connected' 120
    check "it ends" xy destroy later
    check "nothing is left of it" sh -c '! xl list | grep -F "(null)"'

    before=$(store_pid)
    check "the packages are installed anew" apt-get install -y --reinstall /lab/packages/*.deb
    echo "$lab_output" | grep -A 1 'serves on in'
    check "the store runs on meanwhile" test "$(store_pid)" = "$before"
    check "xylemd is back" xy list web
    check "Xen's scripts may be run again" systemctl restart xen
    check "without another store" serves /usr/sbin/xylem-xenstored

    check "a store that serves guests is not removed" sh -c '! apt-get remove -y xylem-xenstored'
    echo "$lab_output" | grep -A 2 'xylem-xenstored serves'
    check "it is still installed" installed xylem-xenstored
    rm -r /etc/xen/auto
    check "the guests end" sh -c 'xy destroy web && xl destroy classic'
    check "a store without guests is removed" apt-get remove -y xylem-xenstored
    echo "$lab_output" | grep -A 2 'serves on'
    before=$(store_pid)
    # Longer than its watchdog waits.
    sleep 80
    check "it serves on" test "$(store_pid)" = "$before"
    check "xl still has a store" xl list
    check "and may have it again" apt-get install -y /lab/packages/xylem-xenstored*.deb
    echo "XENSTORED=$cxenstored" >>/etc/default/xen
    reboot_host
}

named() {
    check "boot 3 is well" well
    check "the store that /etc/default/xen names serves" serves "$cxenstored"
    check "ours was not started" sh -c '! systemctl is-active xenstored'
    check "the VM with --autostart runs" wait_for 'runs web' 300
    check "it says hello again" hello_number 3 web
    check "packages are purged while a guest runs" apt-get purge -y xylem-web xylem xylem-xenstored
    check "the guest runs on" runs web
    check "xl can destroy it" xl destroy web
    sed -i '/^XENSTORED=/d' /etc/default/xen
    reboot_host
}

gone() {
    check "boot 4 is well" well
    check "Debian's store serves" serves "$oxenstored"
    check "xl makes a VM" xl create -q /root/web.cfg
    check "it says hello" hello_number 4 web
    check "xl destroys it" xl destroy web
    rm /root/web.cfg
    files >$state/files.after
    check "no file is left of our packages" diff $state/files.before $state/files.after
    check "no unit either" sh -c '! systemctl list-units --all --no-pager --plain | grep -v [.]device | grep -i xylem'
}

case $boot in
    1) fresh ;;
    2) ours ;;
    3) named ;;
    4) gone ;;
esac
