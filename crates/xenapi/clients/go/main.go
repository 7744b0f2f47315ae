// Reads all records by the client of Go that Terraform's and Packer's plugins for XAPI are made with, and turns a VM on and off.
//
// Usage: go run . URL USER PASSWORD VM
//
// VM is the name of a defined VM that is down; it is down again at the end. Ends at the first expectation that does not hold.
// Where no proxy of Go has the client, a clone does: go mod edit -replace github.com/terra-farm/go-xen-api-client=FOLDER
package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/amfranz/go-xmlrpc-client"
	xenapi "github.com/terra-farm/go-xen-api-client"
)

func check(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "go: %s: %v\n", what, err)
		os.Exit(1)
	}
	fmt.Println("ok:", what)
}

func expect(what string, holds bool) {
	if !holds {
		check(what, fmt.Errorf("it does not hold"))
	}
	fmt.Println("ok:", what)
}

// All records of all classes that the client knows, in the client's types: it fails at a field of another type.
func records(client *xenapi.Client, session xenapi.SessionRef) (read, unknown int) {
	classes := reflect.ValueOf(client).Elem()
	for number := 0; number < classes.NumField(); number++ {
		class := classes.Type().Field(number)
		if !class.IsExported() {
			continue
		}
		all := classes.Field(number).MethodByName("GetAllRecords")
		if !all.IsValid() {
			continue
		}
		found := all.Call([]reflect.Value{reflect.ValueOf(session)})
		if err, failed := found[1].Interface().(error); failed {
			if !strings.Contains(err.Error(), "MESSAGE_METHOD_UNKNOWN") {
				check(class.Name, err)
			}
			unknown++
			continue
		}
		read += found[0].Len()
	}
	return
}

// The client's own From takes the answer for a list, which it is not with XAPI either.
func from(client *xenapi.Client, session xenapi.SessionRef, token string) (events []interface{}, next string) {
	result, err := client.APICall("event.from", string(session), []string{"vm"}, token, 10.0)
	check("event.from", err)
	answer := result.Value.(xmlrpc.Struct)
	return answer["events"].([]interface{}), answer["token"].(string)
}

func main() {
	url, user, password, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	client, err := xenapi.NewClient(url, nil)
	check("client", err)
	session, err := client.Session.LoginWithPassword(user, password, "2.21", "go")
	check("log-in", err)
	read, unknown := records(client, session)
	expect(fmt.Sprintf("%d records, and %d classes that are not there", read, unknown), read > 0)

	vms, err := client.VM.GetByNameLabel(session, name)
	check("the VM", err)
	expect("one of that name", len(vms) == 1)
	vm := vms[0]
	_, token := from(client, session, "")
	check("start", client.VM.Start(session, vm, false, false))
	record, err := client.VM.GetRecord(session, vm)
	check("its record", err)
	expect("it runs", record.PowerState == xenapi.VMPowerStateRunning && record.VCPUsMax > 0 && record.MemoryTarget > 0)
	events, _ := from(client, session, token)
	tells := false
	for _, event := range events {
		tells = tells || event.(xmlrpc.Struct)["ref"] == string(vm)
	}
	expect("an event tells of it", tells)
	err = client.VM.Start(session, vm, false, false)
	expect("it fails with VM_BAD_POWER_STATE", err != nil && strings.Contains(err.Error(), "VM_BAD_POWER_STATE"))

	check("shutdown", client.VM.HardShutdown(session, vm))
	state, err := client.VM.GetPowerState(session, vm)
	check("its state", err)
	expect("it is down", state == xenapi.VMPowerStateHalted)
	check("log-out", client.Session.Logout(session))
	fmt.Println("go: all is as expected")
}
