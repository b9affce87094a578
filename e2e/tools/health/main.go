// Health of objects as other tools see it.
//
//	health SCRIPT.lua
//
// A line of the input is an object in JSON. A line of the output has its status by kstatus, which Flux and Helm 4 use,
// and the answer of a health script in Lua, with the libraries that Argo CD opens for such a script.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

const longestLine = 1 << 24 // bytes

// Argo CD has `os` too, with the time alone.
var libraries = map[string]lua.LGFunction{
	lua.LoadLibName: lua.OpenPackage,
	lua.BaseLibName: lua.OpenBase,
	lua.TabLibName:  lua.OpenTable,
}

type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	script, err := os.ReadFile(os.Args[1])
	check(err)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		object := &unstructured.Unstructured{}
		check(object.UnmarshalJSON(lines.Bytes()))
		result, err := status.Compute(object)
		check(err)
		text, err := json.Marshal(map[string]health{
			"kstatus": {result.Status.String(), result.Message},
			"argo":    run(string(script), object.Object),
		})
		check(err)
		fmt.Println(string(text))
	}
	check(lines.Err())
}

func run(script string, object map[string]any) health {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range libraries {
		check(state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)))
	}
	state.SetGlobal("obj", toLua(state, object))
	check(state.DoString(script))
	answer, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return health{"", "the script returned no table"}
	}
	return health{answer.RawGetString("status").String(), answer.RawGetString("message").String()}
}

func toLua(state *lua.LState, given any) lua.LValue {
	switch found := given.(type) {
	case map[string]any:
		table := state.NewTable()
		for name, inner := range found {
			table.RawSetString(name, toLua(state, inner))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, inner := range found {
			table.Append(toLua(state, inner))
		}
		return table
	case string:
		return lua.LString(found)
	case bool:
		return lua.LBool(found)
	case int64:
		return lua.LNumber(found)
	case float64:
		return lua.LNumber(found)
	}
	return lua.LNil
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
