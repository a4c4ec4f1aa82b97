// Probe is what the pods of the full node's tests run: a small HTTP server, and its client.
//
//	probe serve :8080 TEXT   answers every request with TEXT, logs a line for each
//	probe get URL            prints the answer
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

const timeout = 10 * time.Second // of one request; a name that does not resolve takes as long

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatalf("probe: %v", err)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 3 && arguments[0] == "serve":
		return serve(arguments[1], arguments[2])
	case len(arguments) == 2 && arguments[0] == "get":
		return get(arguments[1])
	}
	return fmt.Errorf("use `serve ADDRESS TEXT` or `get URL`, got %q", arguments)
}

func serve(address, text string) error {
	log.Printf("serving %q on %s", text, address)
	return http.ListenAndServe(address, http.HandlerFunc(
		func(answer http.ResponseWriter, request *http.Request) {
			log.Printf("%s %s", request.Method, request.URL.Path)
			fmt.Fprintln(answer, text)
		}))
}

func get(url string) error {
	client := http.Client{Timeout: timeout}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
