// Decodes manifests by the types of Kubernetes and of the Prometheus operator, strictly: an unknown or repeated field is an error.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func decode(file string, strict runtime.Decoder) error {
	opened, err := os.Open(file)
	if err != nil {
		return err
	}
	defer opened.Close()
	documents := yaml.NewYAMLReader(bufio.NewReader(opened))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		object, kind, err := strict.Decode(text, nil, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		named, err := meta.Accessor(object)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		fmt.Println(kind.Kind, named.GetName())
	}
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	options := json.SerializerOptions{Yaml: true, Strict: true}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, options)
	for _, file := range os.Args[1:] {
		if err := decode(file, strict); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
